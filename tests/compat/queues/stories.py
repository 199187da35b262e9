"""Delayed records, views, idempotency keys and closing partitions, as a client sees them that knows nothing of them."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.queues.clients import REFRESH_MS, Client, Got, Reader, Sent
from tests.compat.queues.shrinking import CLOSING, remove_emptied, shrink
from tests.compat.support import DEADLINE_S, eventually

T = TypeVar("T")
HOUR = ("TIMER_DELAY_SEC", "3600")


def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic. `__` in the name of a config is a dot."""
    new = NewTopic(topic, partitions, 1, config={name.replace("__", "."): value for name, value in configs.items()})
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[topic].result(DEADLINE_S)


def end_and_committed(bootstrap: str, topic: str, group: str) -> tuple[int, int]:
    """Return the end offset of a topic, and the committed offset of a group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        [committed] = consumer.committed([TopicPartition(topic, 0)], DEADLINE_S)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_S)
        return end, committed.offset
    finally:
        consumer.close()


def read_until(reader: Reader, condition: Callable[[list[Got]], bool], description: str) -> list[Got]:
    """Poll until the records so far satisfy the condition, and return them. Checks that none is before it is due."""
    got: list[Got] = []

    def is_enough() -> bool:
        polled = reader.poll()
        now_ms = time.time_ns() // 1_000_000
        for record in polled:
            assert int(record.headers.get("kbroker.delayed.due.ms", "0")) <= min(now_ms, record.timestamp_ms)
        got.extend(polled)
        return condition(got)

    eventually(is_enough, description, interval=0)
    return got


def read_to(reader: Reader, end: int, count: int) -> list[Got]:
    """Read until the position is `end`. If it is not known, until there are `count` records, and then no more."""
    polls: list[int] = []

    def is_at_end(got: list[Got]) -> bool:
        polls.append(len(got))
        position = reader.position()
        if position is not None:
            return position >= end
        return len(got) >= count and polls[-2:] == [len(got)] * 2

    return read_until(reader, is_at_end, f"the position reaches {end}, or {count} records are read")


def check_committed(client: Client, bootstrap: str, topic: str, group: str, got: list[Got]) -> None:
    if not client.commits:
        return
    end, committed = end_and_committed(bootstrap, topic, group)
    expected = end if client.commits_position else got[-1].offset + 1
    assert committed == expected, f"committed offset {committed} instead of {expected}, end offset {end}"


def delayed_records(client: Client, bootstrap: str, topic: str) -> None:
    """Delayed and immediate records in one batch and in transactions are read once, none early or hidden."""
    create(bootstrap, topic, kbroker__delay__enable="true")
    begin_ms = time.time_ns() // 1_000_000
    delays = {"later": 900, "soon": 600, "committed later": 700}

    def record(value: str) -> Sent:
        trace = ("trace", value)
        return Sent(value, (trace, ("TIMER_DELAY_MS", str(delays[value]))) if value in delays else (trace,))

    hidden = Sent("hidden", (HOUR,))
    batch = [record("now"), record("later"), record("also now"), record("soon"), hidden]
    assert client.produce(topic, batch) == [0, 1, 2, 3, 4]
    client.transaction(topic, [record("committed"), record("committed later")], commit=True)
    client.transaction(topic, [Sent("aborted", (("TIMER_DELAY_MS", "300"),))], commit=False)

    values = ["now", "also now", "committed", "soon", "later", "committed later"]
    reader = client.reader(topic, f"{topic}-group")
    got = read_until(reader, lambda got: len(got) >= len(values), "all records that are due")
    [last] = client.produce(topic, [hidden])
    got += read_to(reader, last + 1, 0)
    reader.close()
    check_committed(client, bootstrap, topic, f"{topic}-group", got)

    assert [r.value for r in got if r.value not in delays] == values[:3]
    assert sorted(r.value for r in got) == sorted(values)
    assert [r.offset for r in got] == sorted({r.offset for r in got})
    by_value = {r.value: r for r in got}
    assert by_value["soon"].offset < by_value["later"].offset
    for value, delivered in by_value.items():
        assert delivered.headers["trace"] == value
        assert "TIMER_DELAY_MS" not in delivered.headers
        assert ("kbroker.delayed.from" in delivered.headers) == (value in delays)
        assert delivered.timestamp_ms >= begin_ms + delays.get(value, 0)
    assert by_value["later"].headers["kbroker.delayed.from"] == "1"

    reader = client.reader(topic, f"{topic}-committed", read_committed=True)
    assert read_to(reader, last + 1, len(values)) == got
    reader.close()


def views(client: Client, bootstrap: str, topic: str) -> None:
    """A view has the selected records of its source, under the same offsets; its position reaches the source's end."""
    view = f"{topic}-view"
    create(bootstrap, topic)
    create(bootstrap, view, kbroker__view__of=topic, kbroker__view__filter="paid || KEYS in (7)")
    base_ms = time.time_ns() // 1_000_000 - 60_000

    def record(number: int) -> Sent:
        headers = [("TAGS", "paid" if number % 3 == 0 else "open")] + [("KEYS", "6 7")] * (number == 7)
        return Sent(str(number), tuple(headers), base_ms + 1000 * number)

    assert client.produce(topic, [record(number) for number in range(30)]) == list(range(30))
    client.produce(topic, [Sent("open", (("TAGS", "open"),), base_ms + 30_000)] * 20)
    selected = sorted([*range(0, 30, 3), 7])

    reader = client.reader(view, f"{view}-group")
    got = read_to(reader, 50, len(selected))
    assert [(r.offset, r.value) for r in got] == [(number, str(number)) for number in selected]
    reader.close()
    check_committed(client, bootstrap, view, f"{view}-group", got)

    reader = client.reader(view, f"{view}-committed", read_committed=True)
    assert read_to(reader, 50, len(selected)) == got
    reader.seek(10)
    later = [r for r in got if r.offset >= 10]
    assert read_to(reader, 50, len(later)) == later
    reader.seek_to_time(base_ms + 16_500)
    later = [r for r in got if r.offset >= 17]
    assert read_to(reader, 50, len(later)) == later
    reader.close()


def idempotency_keys(client: Client, bootstrap: str, topic: str) -> None:
    """A record whose key is known has the offset of the first one, if the response can say so; it is not stored."""
    create(bootstrap, topic, kbroker__dedup__window__ms="3600000")

    def record(key: str, value: str) -> Sent:
        return Sent(value, (("IDEMPOTENCY_KEY", key),))

    assert client.produce(topic, [record("1", "one"), record("2", "two"), Sent("no key")]) == [0, 1, 2]
    assert client.produce(topic, [record("1", "one again")]) == [0]
    assert client.produce(topic, [record("1", "one again"), record("2", "two again")]) == [0, 1]
    # Their first records are not consecutive. No client takes another offset for theirs. On a busy machine a client may
    # send them in two batches, and then knows the right ones.
    found: list[tuple[str, int | None]] = []
    for keys in ("21", "11", "31"):
        offsets = client.produce(topic, [record(key, {"3": "three"}.get(key, "again")) for key in keys])
        found += zip(keys, offsets, strict=True)
    [three] = client.produce(topic, [record("3", "three again")])
    first = {"1": 0, "2": 1, "3": three}
    assert all(offset is None or offset < 0 or offset == first[key] for key, offset in found), found
    [last] = client.produce(topic, [Sent("last")])
    assert client.produce(topic, [record("2", "two again")]) == [1]
    end, _ = end_and_committed(bootstrap, topic, "none")
    assert end > last

    for read_committed in (False, True):
        group = f"{topic}-{read_committed}"
        reader = client.reader(topic, group, read_committed)
        got = read_to(reader, end, 5)
        reader.close()
        assert [(r.offset, r.value) for r in got] == [
            (0, "one"),
            (1, "two"),
            (2, "no key"),
            (three, "three"),
            (last, "last"),
        ]
        check_committed(client, bootstrap, topic, group, got)


def expiring_records(client: Client, bootstrap: str, topic: str) -> None:
    """Records whose time is over are not read, also from a view; positions and commits move over them."""
    view, hour_ms = f"{topic}-view", 3_600_000
    create(bootstrap, topic, kbroker__ttl__enable="true", kbroker__ttl__ms=str(hour_ms))
    create(bootstrap, view, kbroker__view__of=topic, kbroker__view__filter="paid")
    now_ms = time.time_ns() // 1_000_000
    old_ms = now_ms - 2 * hour_ms

    def record(value: str, ttl_ms: int | None = None, timestamp_ms: int = now_ms) -> Sent:
        ttl = () if ttl_ms is None else (("TTL_MS", str(ttl_ms)),)
        return Sent(value, (("TAGS", "paid" if "paid" in value else "open"), *ttl), timestamp_ms)

    over = [record("paid, over", 60_000, old_ms), record("over by the topic", None, old_ms)]
    batch = [*over, record("paid"), record("paid, long", 3 * hour_ms, old_ms), record("paid, soon over", 300)]
    assert client.produce(topic, batch) == [0, 1, 2, 3, 4]
    client.transaction(topic, [*over, record("committed")], commit=True)
    client.transaction(topic, [record("aborted")], commit=False)
    [last] = client.produce(topic, [record("last")])
    [end, *_] = client.produce(topic, over)
    eventually(lambda: time.time_ns() // 1_000_000 > now_ms + 300, "a record has expired")

    values = ["paid", "paid, long", "committed", "last"]
    reader = client.reader(topic, f"{topic}-group")
    got = read_to(reader, end + len(over), len(values))
    reader.close()
    assert [r.value for r in got if r.value != "aborted"] == values
    assert got[-1].offset == last
    check_committed(client, bootstrap, topic, f"{topic}-group", got)

    reader = client.reader(topic, f"{topic}-committed", read_committed=True)
    assert [r.value for r in read_to(reader, end + len(over), len(values))] == values
    # The record at the offset of this time has expired.
    reader.seek_to_time(old_ms)
    assert [r.value for r in read_to(reader, end + len(over), len(values))] == values
    reader.close()
    reader = client.reader(view, f"{view}-group")
    assert [r.value for r in read_to(reader, end + len(over), 2)] == values[:2]
    reader.close()


def check_each_once(sent: list[Sent], got: list[Got]) -> None:
    counts = Counter(r.value for r in got)
    counts.update({r.value: 0 for r in sent})
    wrong = {value: count for value, count in counts.items() if count != 1}
    assert wrong == {}, f"not read once, but as often as this: {wrong}"


def committed_ones(got: list[Got]) -> list[Got]:
    """Return the records without those of the aborted transaction, some of which the reader sees in partition 0."""
    return [r for r in got if not r.value.startswith("aborted")]


def closing_partitions(client: Client, bootstrap: str, topic: str) -> None:
    """A producer goes on while two of three partitions close; each record is read once, also when they are gone."""
    create(bootstrap, topic, partitions=3)

    def batch(name: str) -> list[Sent]:
        keyed = [Sent(f"{name} of {key}", key=str(key)) for key in range(12)]
        return [*keyed, Sent(f"{name} without a key")]

    sent = batch("first")
    client.produce(topic, sent)
    reader = client.reader(topic, f"{topic}-group")
    got = read_until(reader, lambda got: len(got) >= len(sent), "the first records")

    def produce_round(name: str) -> list[Sent]:
        records = batch(name)
        client.produce(topic, records)
        return records

    def produce_during(name: str, change: Callable[[str, str], T]) -> tuple[T, list[Sent], list[Sent]]:
        """Return the result of a change of the topic, what was sent meanwhile, and three rounds from after it."""
        meanwhile: list[Sent] = []
        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(change, bootstrap, topic)
            while not changing.done():
                meanwhile += produce_round(f"round {len(meanwhile)} during {name}")
            after = [record for number in range(3) for record in produce_round(f"round {number} after {name}")]
            return changing.result(), meanwhile, after

    outcome, meanwhile, later = produce_during("the closing", shrink)
    assert outcome == CLOSING
    sent += [*meanwhile, *later]
    committed = batch("committed")
    client.transaction(topic, committed, commit=True)
    client.transaction(topic, batch("aborted"), commit=False)
    sent += committed
    got += read_until(reader, lambda more: len(got) + len(committed_ones(more)) >= len(sent), "all records")
    reader.close()
    check_each_once(sent, committed_ones(got))
    reader = client.reader(topic, f"{topic}-committed", read_committed=True)
    got = read_until(reader, lambda got: len(got) >= len(sent), "all committed records")
    check_each_once(sent, got)
    for key in map(str, range(12)):
        values = [r.value for r in later if r.key == key]
        assert [r.value for r in got if r.value in values] == values

    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = [TopicPartition(topic, index, -1) for index in (1, 2)]
    for deleted in admin.delete_records(ends).values():
        deleted.result(DEADLINE_S)
    _, meanwhile, after = produce_during("the removal", remove_emptied)
    later += [*committed, *meanwhile, *after]
    # Until the client has refreshed its metadata.
    until_s = time.monotonic() + 4 * REFRESH_MS / 1000
    while time.monotonic() < until_s:
        later += produce_round(f"round {len(later)} after the refresh")
    last = batch("last")
    client.transaction(topic, last, commit=True)
    # A member that joins again because of the removal begins at its committed offsets: it has none.
    read_until(reader, lambda got: any(r.value == last[0].value for r in got), "a record after the removal")
    reader.close()
    reader = client.reader(topic, f"{topic}-after", read_committed=True)
    values = {r.value for r in (*later, *last)}
    got = read_until(reader, lambda got: len({r.value for r in got} & values) == len(values), "all records")
    check_each_once([*later, *last], [r for r in got if r.value in values])
    reader.close()


STORIES = (delayed_records, views, idempotency_keys, expiring_records, closing_partitions)
