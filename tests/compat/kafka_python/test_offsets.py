"""Positions of a consumer, with kafka-python: seeking, pausing, offsets by time, lag, commits."""

import time

import pytest
from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import OffsetMetadataTooLargeError, OffsetOutOfRangeError

from tests.compat.kafka_python.helpers import partitions, poll, read
from tests.compat.support import DEADLINE_S, eventually

HOUR_MS = 3600 * 1000


@pytest.fixture
def filled(producer, topic):
    """filled(count, partitions): a topic with `count` records "0", "1", ... in each partition."""

    def fill(count: int, count_partitions: int = 1) -> str:
        name = topic(count_partitions)
        sender = producer(linger_ms=5)
        for number in range(count):
            for partition in range(count_partitions):
                sender.send(name, str(number).encode(), partition=partition)
        sender.flush(DEADLINE_S)
        return name

    return fill


@pytest.mark.feature("offsets")
def test_seek_and_the_ends_of_a_partition(consumer, filled):
    tp = TopicPartition(filled(30), 0)
    reader = consumer()
    reader.assign([tp])
    assert reader.beginning_offsets([tp]) == {tp: 0}
    assert reader.end_offsets([tp]) == {tp: 30}
    reader.seek(tp, 27)
    assert [r.offset for r in read(reader, 3)] == [27, 28, 29]
    assert reader.position(tp) == 30
    assert reader.highwater(tp) == 30
    reader.seek_to_beginning(tp)
    assert reader.position(tp) == 0
    assert len(read(reader, 30)) == 30
    reader.seek_to_end(tp)
    assert reader.position(tp) == 30


@pytest.mark.feature("offsets")
def test_a_paused_partition_delivers_nothing_until_it_is_resumed(consumer, filled):
    name = filled(20, 2)
    paused, free = partitions(name, 2)
    reader = consumer()
    reader.assign([paused, free])
    reader.pause(paused)
    assert {r.partition for r in read(reader, 20)} == {1}
    assert reader.paused() == {paused}
    reader.resume(paused)
    assert {r.partition for r in read(reader, 20)} == {0}


@pytest.mark.feature("offsets")
def test_offsets_for_times(consumer, producer, topic):
    tp = TopicPartition(topic(), 0)
    start = int(time.time() * 1000) - 10 * HOUR_MS
    sender = producer(batch_size=0)
    for n in range(10):
        sender.send(tp.topic, str(n).encode(), partition=0, timestamp_ms=start + n * HOUR_MS)
    sender.flush(DEADLINE_S)
    reader = consumer()
    reader.assign([tp])
    offset_and_time = reader.offsets_for_times({tp: start + 3 * HOUR_MS})[tp]
    assert (offset_and_time.offset, offset_and_time.timestamp) == (3, start + 3 * HOUR_MS)
    offset_and_time = reader.offsets_for_times({tp: start + 3 * HOUR_MS + 1})[tp]
    assert (offset_and_time.offset, offset_and_time.timestamp) == (4, start + 4 * HOUR_MS)
    assert reader.offsets_for_times({tp: 0})[tp].offset == 0
    assert reader.offsets_for_times({tp: start + 9 * HOUR_MS + 1})[tp] is None


@pytest.mark.feature("offsets")
def test_an_offset_out_of_range_is_reset_as_the_consumer_wants(consumer, filled):
    tp = TopicPartition(filled(5), 0)
    strict = consumer(auto_offset_reset="none")
    strict.assign([tp])
    strict.seek(tp, 1000)

    def fails() -> bool:
        try:
            strict.poll(timeout_ms=100)
        except OffsetOutOfRangeError:
            return True
        return False

    eventually(fails, "OffsetOutOfRangeError")
    lenient = consumer(auto_offset_reset="earliest")
    lenient.assign([tp])
    lenient.seek(tp, 1000)
    assert [r.offset for r in read(lenient, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.feature("commits")
def test_commits_with_metadata_and_lag(consumer, filled, group):
    name = filled(10, 2)
    first, second = partitions(name, 2)
    reader = consumer(group_id=group, enable_auto_commit=False)
    reader.assign([first, second])
    assert reader.committed(first) is None
    reader.commit({first: OffsetAndMetadata(4, "so far", -1), second: OffsetAndMetadata(10, "", -1)})
    stored = reader.committed(first, metadata=True)
    assert (stored.offset, stored.metadata) == (4, "so far")
    lag = {tp: reader.end_offsets([tp])[tp] - reader.committed(tp) for tp in (first, second)}
    assert lag == {first: 6, second: 0}

    done = []
    reader.commit_async({first: OffsetAndMetadata(7, "later", -1)}, callback=lambda *what: done.append(what))
    eventually(lambda: reader.poll(timeout_ms=20) is not None and done, "the callback of commit_async")
    assert reader.committed(first) == 7


@pytest.mark.feature("commits")
def test_metadata_over_the_limit_is_refused_and_changes_nothing(consumer, topic, group):
    tp = TopicPartition(topic(), 0)
    reader = consumer(group_id=group, enable_auto_commit=False)
    reader.assign([tp])
    reader.commit({tp: OffsetAndMetadata(1, "x" * 4096, -1)})
    with pytest.raises(OffsetMetadataTooLargeError):
        reader.commit({tp: OffsetAndMetadata(2, "x" * 4097, -1)})
    assert reader.committed(tp) == 1


@pytest.mark.feature("commits")
def test_the_next_consumer_of_the_group_continues_where_the_last_one_committed(consumer, filled, group):
    name = filled(20)
    first = consumer(name, group_id=group, enable_auto_commit=True, max_poll_records=5)
    records = []
    while len(records) < 10:
        records.extend(poll(first, timeout_ms=200))
    first.close()  # commits the position
    second = consumer(name, group_id=group)
    assert [r.offset for r in read(second, 20 - len(records))] == list(range(len(records), 20))
