"""Flights and weather of 2013 as events of two topics, the rows of an archive of them, and their producer."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Producer

from tests.compat.spark.flights import flight_lines, weather_lines
from tests.compat.support import DEADLINE_S

FLIGHTS, WEATHER = "flights", "weather"
PARTITIONS = {FLIGHTS: 3, WEATHER: 2}
# The first ten days of December have about 9,000 flights and 700 weather reports.
PART_OF_YEAR = (12, 10)
DAY_MS = 86_400_000
# Until it finishes, the producer has 1/e of the events left after this time.
TIME_CONSTANT_S = 100
PAUSE_S = 0.05

Header = tuple[str, bytes | None]

# The columns of an archive's tables and the topic, with the timestamp in microseconds.
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
    ]
)


class Event(NamedTuple):
    """One record."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes
    headers: tuple[Header, ...]
    timestamp_ms: int


def flight_events() -> list[Event]:
    """Return the flights and weather reports of PART_OF_YEAR, in the order of their timestamps."""
    return sorted((*_flights(), *_weather()), key=lambda event: event.timestamp_ms)


def _flights() -> Iterable[Event]:
    """Yield the flights. The key is the aircraft, or null if it is unknown."""
    header, *lines = flight_lines(*PART_OF_YEAR)
    tail, dep_time, dest, minute, hour = map(
        header.split(",").index, ("tailnum", "dep_time", "dest", "minute", "time_hour")
    )
    for line in lines:
        row = line.split(",")
        time_ms = _parse_ms(row[hour]) + int(row[minute]) * 60_000
        headers: tuple[Header, ...] = (("to", row[dest].encode()), ("took off", _bytes(row[dep_time])), ("to", b""))
        yield Event(FLIGHTS, _partition(FLIGHTS, time_ms), _bytes(row[tail]), line.encode(), headers, time_ms)


def _weather() -> Iterable[Event]:
    """Yield the weather reports. The key is the airport; there are no headers."""
    header, *lines = weather_lines(*PART_OF_YEAR)
    hour = header.split(",").index("time_hour")
    for line in lines:
        row = line.split(",")
        time_ms = _parse_ms(row[hour])
        yield Event(WEATHER, _partition(WEATHER, time_ms), row[0].encode(), line.encode(), (), time_ms)


def _partition(topic: str, time_ms: int) -> int:
    """Return the partition of a day. It is only one, since each batch writes a file for each date and partition."""
    return time_ms // DAY_MS % PARTITIONS[topic]


def _bytes(text: str) -> bytes | None:
    return None if text in ("", "NA") else text.encode()


@cache
def _parse_ms(utc: str) -> int:
    return int(datetime.fromisoformat(utc).timestamp()) * 1000


def expected_rows(events: Sequence[Event]) -> pa.Table:
    """Return the rows of an archive of these events, sorted by topic, partition and offset.

    An idempotent producer keeps their order, so the n-th event of a partition has offset n.
    """
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    next_offsets = {(topic, p): 0 for topic, count in PARTITIONS.items() for p in range(count)}
    for event in sorted(events, key=lambda event: (event.topic, event.partition)):
        tp = (event.topic, event.partition)
        headers = [{"key": key, "value": value} for key, value in event.headers] or None
        row = (*tp, next_offsets[tp], event.key, event.value, headers, event.timestamp_ms * 1000, 0)
        next_offsets[tp] += 1
        for name, value in zip(SCHEMA.names, row, strict=True):
            columns[name].append(value)
    return pa.table(columns, SCHEMA)


def normalize(tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return what any reader has read of the topics, with the columns, types and order of `expected_rows`."""
    rows = []
    for topic, table in tables.items():
        columns = [pa.array([topic] * table.num_rows, pa.string())]
        for field in list(SCHEMA)[1:]:
            column = table.column(field.name)
            if field.name == "timestamp":
                column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            if field.name == "headers":  # pyiceberg reads a missing list as an empty one
                column = pa.chunked_array([[headers or None for headers in column.to_pylist()]], field.type)
            columns.append(column.cast(field.type))
        rows.append(pa.table(columns, SCHEMA))
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    return pa.concat_tables(rows).sort_by(order).combine_chunks()


def find_difference(actual: pa.Table, expected: pa.Table) -> str:
    """Describe the first difference between two tables; an empty string if they are equal."""
    if actual.equals(expected):
        return ""
    key = ["topic", "partition", "offset"]
    found_keys, expected_keys = (
        list(map(tuple, zip(*(table.column(name).to_pylist() for name in key), strict=True)))
        for table in (actual, expected)
    )
    if found_keys != expected_keys:
        duplicates = len(found_keys) - len(set(found_keys))
        missing = sorted(set(expected_keys) - set(found_keys))
        unexpected = sorted(set(found_keys) - set(expected_keys))
        return (
            f"{duplicates} duplicates, {len(missing)} missing: {missing[:3]}, "
            f"{len(unexpected)} unexpected: {unexpected[:3]}"
        )
    for n in range(len(expected_keys)):
        if not actual.slice(n, 1).equals(expected.slice(n, 1)):
            return f"{actual.slice(n, 1).to_pylist()} instead of {expected.slice(n, 1).to_pylist()}"
    raise AssertionError("the tables differ only in their schema")


class EventProducer:
    """Sends events in a thread, ever more slowly, so that events remain for as long as the test needs them.

    It is idempotent, so that each event is in its topic once and in order, even if the broker is killed.
    """

    def __init__(self, bootstrap: str, events: Sequence[Event]) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        self._producer = Producer({**settings, "compression.type": "lz4", "message.timeout.ms": 240_000})
        self._events = events
        self._stop = threading.Event()
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-producer", daemon=True)
        self.errors: list[object] = []
        self.sent = 0
        self.acknowledged = 0

    def __enter__(self) -> "EventProducer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._finish.set()
        self._thread.join(DEADLINE_S)
        self._producer.purge()

    def finish(self, timeout: float) -> None:
        """Send the remaining events without a limit, and wait until all are acknowledged."""
        self._finish.set()
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"{self.sent} of {len(self._events)} events sent in {timeout} s"
        assert self._producer.flush(timeout) == 0, f"{self.sent - self.acknowledged} events are not acknowledged"
        assert self.errors == []
        assert self.acknowledged == len(self._events)

    def _run(self) -> None:
        due = 0.0
        while not self._finish.wait(PAUSE_S):
            due += (len(self._events) - self.sent) * PAUSE_S / TIME_CONSTANT_S
            self._send_next(int(due))
            due -= int(due)
        self._send_next(len(self._events) - self.sent)

    def _send_next(self, count: int) -> None:
        for event in self._events[self.sent : self.sent + count]:
            if self._stop.is_set():
                return
            self._send(event)
            self.sent += 1
            self._producer.poll(0)

    def _send(self, event: Event) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(
                    event.topic,
                    event.value,
                    event.key,
                    event.partition,
                    on_delivery=self._on_delivery,
                    timestamp=event.timestamp_ms,
                    headers=list(event.headers),
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _on_delivery(self, error: object, _: object) -> None:
        self.acknowledged += not error
        self.errors += [error] if error else []
