"""Positions of a consumer, with confluent-kafka: seeking, pausing, offsets by time, lag, commits."""

import time

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from tests.compat.confluent_kafka.helpers import code_of, from_the_start, read, send, send_all
from tests.compat.support import DEADLINE_S, eventually

HOUR_MS = 3600 * 1000


@pytest.fixture
def filled(producer, topic):
    """filled(count, partitions): a topic with `count` records "0", "1", ... in each partition."""

    def fill(count: int, partitions: int = 1) -> str:
        name = topic(partitions)
        for partition in range(partitions):
            send_all(producer(), name, (str(n).encode() for n in range(count)), partition=partition)
        return name

    return fill


@pytest.mark.feature("offsets")
def test_seek_and_the_ends_of_a_partition(consumer, filled):
    name = filled(30)
    reader = from_the_start(consumer(), name)
    assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=DEADLINE_S) == (0, 30)
    assert len(read(reader, 30)) == 30
    reader.seek(TopicPartition(name, 0, 27))
    assert [m.offset() for m in read(reader, 3)] == [27, 28, 29]
    assert reader.position([TopicPartition(name, 0)])[0].offset == 30
    assert reader.get_watermark_offsets(TopicPartition(name, 0), cached=True) == (0, 30)


@pytest.mark.feature("offsets")
def test_a_consumer_at_the_end_reads_only_new_records(consumer, producer, filled):
    name = filled(10)
    reader = consumer()
    reader.assign([TopicPartition(name, 0, OFFSET_END)])
    reader.poll(0.5)
    eventually(lambda: reader.position([TopicPartition(name, 0)]) and reader.poll(0.2) is None, "the end")
    send(producer(), name, b"new")
    assert [(m.offset(), m.value()) for m in read(reader, 1)] == [(10, b"new")]


@pytest.mark.feature("offsets")
def test_a_paused_partition_delivers_nothing_until_it_is_resumed(consumer, filled):
    name = filled(20, 2)
    reader = from_the_start(consumer(), name, 2)
    reader.pause([TopicPartition(name, 0)])
    assert {m.partition() for m in read(reader, 20)} == {1}
    reader.resume([TopicPartition(name, 0)])
    assert {m.partition() for m in read(reader, 20)} == {0}


@pytest.mark.feature("offsets")
def test_offsets_for_times(consumer, producer, topic):
    name = topic()
    start = int(time.time() * 1000) - 10 * HOUR_MS
    sender = producer()
    for n in range(10):
        send(sender, name, str(n).encode(), timestamp=start + n * HOUR_MS)
    reader = consumer()

    def at(timestamp: int) -> int:
        return reader.offsets_for_times([TopicPartition(name, 0, timestamp)], timeout=DEADLINE_S)[0].offset

    assert at(start + 3 * HOUR_MS) == 3
    assert at(start + 3 * HOUR_MS + 1) == 4
    assert at(0) == 0
    assert at(start + 9 * HOUR_MS + 1) == OFFSET_END


@pytest.mark.feature("offsets")
def test_an_offset_out_of_range_is_an_error_or_a_reset(consumer, filled):
    name = filled(5)
    strict = consumer({"auto.offset.reset": "error"})
    strict.assign([TopicPartition(name, 0, 1000)])

    def error() -> KafkaError | None:
        message = strict.poll(0.2)
        return message.error() if message else None

    assert eventually(error, "an error").code() == KafkaError._AUTO_OFFSET_RESET
    lenient = consumer()
    lenient.assign([TopicPartition(name, 0, 1000)])
    assert [m.offset() for m in read(lenient, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.feature("commits")
def test_commits_with_metadata_and_lag(consumer, filled):
    name = filled(10, 2)
    reader = consumer({"enable.auto.commit": False})

    def committed() -> list[TopicPartition]:
        return reader.committed([TopicPartition(name, p) for p in range(2)], timeout=DEADLINE_S)

    assert all(tp.offset < 0 for tp in committed())
    offsets = [TopicPartition(name, 0, 4, metadata="so far"), TopicPartition(name, 1, 10)]
    assert [tp.error for tp in reader.commit(offsets=offsets, asynchronous=False)] == [None, None]
    assert [(tp.offset, tp.metadata) for tp in committed()] == [(4, "so far"), (10, None)]
    lag = [reader.get_watermark_offsets(tp, timeout=DEADLINE_S)[1] - tp.offset for tp in committed()]
    assert lag == [6, 0]


@pytest.mark.feature("commits")
def test_the_callback_of_an_asynchronous_commit(consumer, filled):
    name = filled(10)
    done = []
    reader = consumer({"enable.auto.commit": False, "on_commit": lambda *args: done.append(args)})
    reader.subscribe([name])
    message = read(reader, 10)[6]
    reader.commit(message=message, asynchronous=True)
    eventually(lambda: reader.poll(0.05) is None and done, "the callback")
    [(error, [partition])] = done
    assert (error, partition.error, partition.offset) == (None, None, 7)
    assert reader.committed([TopicPartition(name, 0)], timeout=DEADLINE_S)[0].offset == 7


@pytest.mark.feature("commits")
def test_metadata_over_the_limit_is_refused_and_changes_nothing(consumer, topic):
    name = topic()
    reader = consumer({"enable.auto.commit": False})
    reader.commit(offsets=[TopicPartition(name, 0, 1, metadata="x" * 4000)], asynchronous=False)
    with pytest.raises(KafkaException) as raised:
        reader.commit(offsets=[TopicPartition(name, 0, 2, metadata="x" * 4097)], asynchronous=False)
    assert code_of(raised.value) == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert reader.committed([TopicPartition(name, 0)], timeout=DEADLINE_S)[0].offset == 1


@pytest.mark.feature("commits")
def test_the_next_consumer_of_the_group_continues_where_the_last_one_committed(consumer, filled):
    name = filled(20)
    first = consumer()
    first.subscribe([name])
    assert len(first.consume(8, timeout=DEADLINE_S)) == 8
    first.close()  # commits what was delivered
    second = consumer()
    second.subscribe([name])
    assert [m.offset() for m in read(second, 12)] == list(range(8, 20))
