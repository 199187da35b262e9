"""The year 2013 as two topics by event time, what an archive of them has to hold, and a client that sends them."""

import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Producer

from tests.compat.spark.flights import flight_lines, weather_lines

FLIGHTS, WEATHER = "flights", "weather"
PARTITIONS = {FLIGHTS: 3, WEATHER: 2}
DAY_MS = 86_400_000

Header = tuple[str, bytes | None]

# The columns of an archive that readers see, but for the date, which is compared by itself.
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.int64()),
        ("timestampType", pa.int32()),
        ("date", pa.string()),
    ]
)


class Event(NamedTuple):
    """One record to send."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes
    headers: tuple[Header, ...]
    timestamp_ms: int


def year() -> list[Event]:
    """All flights and all weather in order of event time, which is the record's timestamp."""
    return sorted((*_flights(), *_weather()), key=lambda event: event.timestamp_ms)


def _flights() -> Iterable[Event]:
    """The key is the aircraft, null where it is unknown."""
    names, *lines = flight_lines()
    tail, took_off, to, minute, hour = map(
        names.split(",").index, ("tailnum", "dep_time", "dest", "minute", "time_hour")
    )
    for line in lines:
        row = line.split(",")
        when = _ms(row[hour]) + int(row[minute]) * 60_000
        headers: tuple[Header, ...] = (("to", row[to].encode()), ("took off", _known(row[took_off])), ("to", b""))
        yield Event(FLIGHTS, _partition(FLIGHTS, when), _known(row[tail]), line.encode(), headers, when)


def _weather() -> Iterable[Event]:
    """The key is the airport. No headers."""
    names, *lines = weather_lines()
    hour = names.split(",").index("time_hour")
    for line in lines:
        row = line.split(",")
        when = _ms(row[hour])
        yield Event(WEATHER, _partition(WEATHER, when), row[0].encode(), line.encode(), (), when)


def _partition(topic: str, time_ms: int) -> int:
    """All of a day is in one: each of 366 days makes a directory, with a file for each partition of each batch."""
    return time_ms // DAY_MS % PARTITIONS[topic]


def _known(text: str) -> bytes | None:
    return None if text in ("", "NA") else text.encode()


@cache
def _ms(utc: str) -> int:
    return int(datetime.fromisoformat(utc).timestamp()) * 1000


@cache
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_MS // 1000, UTC).date().isoformat()


def expected(events: Sequence[Event]) -> pa.Table:
    """These events as an archive has them, by topic, partition and offset: an idempotent producer keeps their order,
    so that the n-th of a partition has offset n."""
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    following = {(topic, p): 0 for topic, count in PARTITIONS.items() for p in range(count)}
    for event in sorted(events, key=lambda event: (event.topic, event.partition)):
        place = (event.topic, event.partition)
        headers = [{"key": key, "value": value} for key, value in event.headers] or None
        day = _day(event.timestamp_ms // DAY_MS)
        row = (*place, following[place], event.key, event.value, headers, event.timestamp_ms * 1000, 0, day)
        following[place] += 1
        for name, value in zip(SCHEMA.names, row, strict=True):
            columns[name].append(value)
    return pa.table(columns, SCHEMA)


def as_expected(table: pa.Table) -> pa.Table:
    """A table that any reader made of an archive, in the columns, types and order of `expected`."""
    columns = []
    for wanted in SCHEMA:
        column = table.column(wanted.name)
        if wanted.name == "timestamp":
            column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        elif wanted.name == "date" and pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        columns.append(column.cast(wanted.type))
    made = pa.table(columns, SCHEMA)
    return made.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]).combine_chunks()


def difference(found: pa.Table, wanted: pa.Table) -> str:
    """Empty where two tables are equal; else a few words about the first row that is not."""
    if found.equals(wanted):
        return ""
    places = ["topic", "partition", "offset"]
    have, want = (
        list(map(tuple, zip(*(t.column(n).to_pylist() for n in places), strict=True))) for t in (found, wanted)
    )
    if have != want:
        twice = len(have) - len(set(have))
        missing, other = sorted(set(want) - set(have)), sorted(set(have) - set(want))
        return f"{twice} twice, {len(missing)} missing: {missing[:3]}, {len(other)} not expected: {other[:3]}"
    for n in range(len(want)):
        if not found.slice(n, 1).equals(wanted.slice(n, 1)):
            return f"{found.slice(n, 1).to_pylist()} is not {wanted.slice(n, 1).to_pylist()}"
    raise AssertionError("the tables differ in nothing but their form")


class Feed:
    """Sends events in order from a thread of its own, at a pace that the test changes; idempotent, so that each is
    in its topic once and in order whatever happens to the broker."""

    def __init__(self, bootstrap: str, events: Sequence[Event], per_s: float) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        self._producer = Producer({**settings, "compression.type": "lz4", "message.timeout.ms": 240_000})
        self._events = events
        self._per_s = per_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self.errors: list[object] = []
        self.sent = 0
        self.acknowledged = 0

    def __enter__(self) -> "Feed":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        self._producer.purge()

    def finish(self, timeout: float) -> None:
        """Sends the rest as fast as it can, and returns when all is acknowledged."""
        self._per_s = float("inf")
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"{self.sent} of {len(self._events)} events sent in {timeout} s"
        assert self._producer.flush(timeout) == 0, f"{self.sent - self.acknowledged} events are not acknowledged"
        assert self.errors == []
        assert self.acknowledged == len(self._events)

    def _run(self) -> None:
        pause = 0.05
        for event in self._events:
            if self._over.is_set():
                return
            self._send(event)
            self.sent += 1
            self._producer.poll(0)
            if self.sent % max(int(min(self._per_s * pause, 1000)), 1) == 0 and self._per_s != float("inf"):
                self._over.wait(pause)

    def _send(self, event: Event) -> None:
        while not self._over.is_set():
            try:
                self._producer.produce(
                    event.topic,
                    event.value,
                    event.key,
                    event.partition,
                    on_delivery=self._reported,
                    timestamp=event.timestamp_ms,
                    headers=list(event.headers),
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _reported(self, error: object, _: object) -> None:
        self.acknowledged += not error
        self.errors += [error] if error else []
