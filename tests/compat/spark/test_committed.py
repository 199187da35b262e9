"""Transactions: with `kafka.isolation.level=read_committed`, Spark reads exactly the committed records."""

import json

import pytest

from tests.compat.spark.helpers import Writer, finish, load, numbers, wait_for_numbers
from tests.compat.support import unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("transactions")]

COMMITTED = {"kafka__isolation__level": "read_committed"}
EARLIEST = {"startingOffsets": "earliest"}
# A fetch response is smaller than a transaction of the tests, so some responses have only aborted records.
SMALL_FETCHES = {"kafka__max__partition__fetch__bytes": 4096, "kafka__fetch__max__bytes": 4096}


@pytest.fixture
def writer(topics):
    """A transactional producer; an open transaction is aborted after the test."""
    writer = Writer(topics)
    yield writer
    writer.close()


def read(spark, bootstrap, name, **options):
    return numbers(load(spark.read, bootstrap, name, **COMMITTED, **options))


def test_a_batch_reads_committed_records_only(spark, bootstrap, topics, writer):
    name = topics.create(partitions=3)
    committed = []
    for block in range(6):
        rows = range(block * 100, block * 100 + 100)
        writer.write(name, rows, 3, committed=block % 3 != 1)
        committed += [] if block % 3 == 1 else rows
        topics.fill(name, [{"value": str(10_000 + block).encode(), "partition": block % 3}])
        committed.append(10_000 + block)
    assert read(spark, bootstrap, name) == sorted(committed)
    assert len(numbers(load(spark.read, bootstrap, name))) == 606


def test_a_batch_ends_at_an_open_transaction(spark, bootstrap, topics, writer):
    name = topics.create(partitions=2)
    topics.fill(name, [{"value": b"0", "partition": 0}])
    writer.begin(name, range(1, 50))
    topics.fill(name, [{"value": b"50", "partition": 0}, {"value": b"51", "partition": 1}])
    assert read(spark, bootstrap, name) == [0, 51]
    assert read(spark, bootstrap, name, **EARLIEST, endingOffsets=json.dumps({name: {"0": 1, "1": 1}})) == [0, 51]
    writer.end(committed=True)
    assert read(spark, bootstrap, name) == list(range(52))


def test_aborted_transactions_larger_than_a_fetch(spark, bootstrap, topics, writer):
    name = topics.create(partitions=2)
    pad = "0" * 500
    writer.write(name, range(100), 2, committed=True)
    writer.write(name, range(100, 300), 2, committed=False, pad=pad)
    writer.write(name, range(300, 310), 2, committed=True)
    writer.write(name, range(310, 510), 2, committed=False, pad=pad)
    expected = [*range(100), *range(300, 310)]
    assert read(spark, bootstrap, name, **SMALL_FETCHES) == expected
    # The offset ranges of the tasks start and end within committed and aborted transactions.
    assert read(spark, bootstrap, name, **SMALL_FETCHES, minPartitions=9) == expected


def test_a_topic_with_aborted_records_only(spark, bootstrap, topics, writer):
    name = topics.create(partitions=2)
    for block in range(3):
        writer.write(name, range(block * 20, block * 20 + 20), 2, committed=False)
    assert read(spark, bootstrap, name) == []
    offsets = json.dumps({name: {"0": 5, "1": 3}})
    assert read(spark, bootstrap, name, startingOffsets=offsets) == []


def test_interleaved_transactions_of_two_producers(spark, bootstrap, topics, writer):
    """The records of two transactions alternate; one of them is committed, the other one aborted."""
    name = topics.create()
    other = Writer(topics)
    for start in range(0, 400, 40):
        writer.begin(name, range(start, start + 10))
        other.begin(name, range(start + 10, start + 20))
        writer.produce(name, range(start + 20, start + 30))
        other.produce(name, range(start + 30, start + 40))
        writer.end(committed=start % 80 == 0)
        other.end(committed=start % 80 != 0)
    other.close()
    expected = [n for n in range(400) if (n // 40 % 2 == 0) == (n // 10 % 2 == 0)]
    assert read(spark, bootstrap, name) == expected
    assert read(spark, bootstrap, name, minPartitions=7) == expected


def test_a_stream_continues_from_its_checkpoint(spark, bootstrap, topics, streams, writer):
    """Between its runs, transactions are committed, aborted, or remain open."""
    name = topics.create(partitions=3)
    frame = load(spark.readStream, bootstrap, name, **EARLIEST, **COMMITTED, maxOffsetsPerTrigger=400).select("value")

    def run():
        finish(streams.to_files(frame, availableNow=True))
        return numbers(streams.files())

    writer.write(name, range(300), 3, committed=True)
    writer.write(name, range(300, 600), 3, committed=False)
    writer.begin(name, range(600, 900), 3)
    topics.fill(name, ({"value": str(n).encode(), "partition": n % 3} for n in range(900, 930)))
    assert run() == list(range(300))
    writer.end(committed=True)
    writer.begin(name, range(930, 1000), 3)
    assert run() == [*range(300), *range(600, 930)]
    writer.end(committed=False)
    writer.write(name, range(1000, 1010), 3, committed=True)
    assert run() == [*range(300), *range(600, 930), *range(1000, 1010)]


def test_a_running_stream_delivers_a_transaction_when_it_is_committed(spark, bootstrap, topics, streams, writer):
    name, table = topics.create(partitions=2), unique("running").replace("-", "_")
    query = streams.to_memory(load(spark.readStream, bootstrap, name, **EARLIEST, **COMMITTED), table)
    expected = []
    for block in range(3):
        rows = range(block * 20, block * 20 + 20)
        topics.fill(name, [{"value": str(1000 + block).encode(), "partition": block % 2}])
        writer.begin(name, rows, 2)
        topics.fill(name, [{"value": str(2000 + block).encode(), "partition": block % 2}])
        expected.append(1000 + block)
        wait_for_numbers(query, lambda: spark.table(table), sorted(expected))
        writer.end(committed=block != 1)
        expected += [*(rows if block != 1 else ()), 2000 + block]
        wait_for_numbers(query, lambda: spark.table(table), sorted(expected))


def test_a_stream_copies_committed_records_only(spark, bootstrap, topics, streams, writer):
    source, sink = topics.create(partitions=2), topics.create()
    for block in range(4):
        writer.write(source, range(block * 50, block * 50 + 50), 2, committed=block % 2 == 1)
    frame = load(spark.readStream, bootstrap, source, **EARLIEST, **COMMITTED).select("value")
    finish(streams.to_topic(frame, bootstrap, sink, availableNow=True))
    copied = sorted(int(message.value()) for message in topics.read(sink))
    assert copied == [*range(50, 100), *range(150, 200)]
