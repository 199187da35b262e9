"""A coordinator context replays its partition when it is loaded, and its transactions alike before and after."""

import asyncio

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.coordinator_context import (
    CoordinatorState,
)
from kbroker.coordinator.runtime.operation import (
    RecordProducer,
)
from kbroker.runtime.turns import TURN_ELEMENTS
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, build_batch
from protocol.records.compression import ZSTD
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.coordinator_context import TP, Story


@pytest.fixture
def story() -> Story:
    return Story()


# Transactions.


def test_the_writes_of_transactions_have_batches_of_their_own_in_order(story: Story) -> None:
    seven, eight = RecordProducer(7, 0), RecordProducer(8, 0)
    story.write("a")
    story.write("b", "c", producer=seven)
    story.write("d", producer=seven)
    story.write("e", producer=eight)
    story.write("f")
    story.write("g")
    story.run_ready()
    headers = [
        (header.producer_id, header.producer_epoch, header.is_transactional, header.count) for header in story.headers()
    ]
    assert headers == [(-1, -1, False, 1), (7, 0, True, 3), (8, 0, True, 1), (-1, -1, False, 2)]
    assert [header.base_sequence for header in story.headers()] == [-1, 0, 0, -1]
    story.end(7)
    story.end(8, committed=False)
    assert [error for _, error in story.results] == [ErrorCode.NONE] * 8
    assert story.shard.replayed == [
        ("a", 0, -1), ("b", 1, 7), ("c", 2, 7), ("d", 3, 7), ("e", 4, 8), ("f", 5, -1), ("g", 6, -1),
        (7, True), (8, False),
    ]  # fmt: skip


def test_a_queued_write_fails_if_a_marker_ends_its_transaction_first(story: Story) -> None:
    guard = story.log.begin_verification(TP, 7, 0)
    story.write("a", producer=RecordProducer(7, 0, guard, True))
    story.end(7, committed=False)
    story.run_ready()
    assert story.results == [("end of 7", ErrorCode.NONE), ("a", ErrorCode.INVALID_TXN_STATE)]


def test_transactions_are_replayed_when_they_are_committed_and_alike_when_they_are_loaded(story: Story) -> None:
    story.log.held = True
    story.write("a", producer=RecordProducer(7, 0))
    story.run_ready()
    story.end(7)
    assert (story.shard.replayed, story.results) == ([], [])
    story.log.commit(1)
    story.run_ready()
    assert (story.shard.replayed, story.results) == ([("a", 0, 7)], [("a", ErrorCode.NONE)])
    story.log.commit()
    successor = Story(active=False)
    successor.log.batches = story.log.batches
    successor.load()
    assert successor.shard.replayed == story.shard.replayed == [("a", 0, 7), (7, True)]


def test_a_marker_that_the_log_rejects_is_not_replayed(story: Story) -> None:
    story.write("a", producer=RecordProducer(7, 1))
    story.run_ready()
    story.end(7)
    assert story.results[-1] == ("end of 7", ErrorCode.INVALID_PRODUCER_EPOCH)
    assert story.shard.replayed == [("a", 0, 7)]


def test_a_partition_that_is_loading_or_closed_accepts_no_markers(story: Story) -> None:
    loading = Story(active=False)
    loading.end(7)
    story.log.held = True
    story.end(7)
    story.context.close(ErrorCode.NOT_COORDINATOR)
    story.end(8)
    story.log.commit()
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert loading.results == [("end of 7", error)]
    # The first marker is in the log, and the next coordinator loads it.
    assert story.results == [("end of 8", error), ("end of 7", error)]
    assert (len(story.headers()), story.shard.replayed) == (1, [])


# Loading.


def test_loading_replays_every_batch_and_ignores_unknown_record_types() -> None:
    story = Story(active=False)
    append = story.log.append_internal
    append(TP, build_batch([(1, b"a", b"v", ()), (1, b"?", b"v", ())], codec=ZSTD))
    append(TP, build_batch([(1, b"b", None, ())], attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0))
    append(TP, build_end_marker(EndTransactionMarker(True, 0), 7, 0, 1))
    append(TP, build_end_marker(EndTransactionMarker(False, 0), 8, 0, 1))
    append(TP, build_batch([(1, b"c", b"v", ())]))
    story.load()
    assert story.shard.replayed == [("a", 0, -1), ("b", 2, 7), (7, True), (8, False), ("c", 5, -1)]
    assert (story.context.state, story.shard.is_loaded) == (CoordinatorState.LOADING, False)
    story.context.activate()
    assert (story.context.state, story.shard.is_loaded) == (CoordinatorState.ACTIVE, True)


@pytest.mark.parametrize("error", [OSError("disk"), KeyError("gone"), ImportError("codec"), MemoryError()])
def test_a_partition_that_cannot_be_read_cannot_be_loaded(error: Exception) -> None:
    story = Story(active=False)
    story.log.read_error = error
    with pytest.raises(KafkaError) as failed:
        story.load()
    assert failed.value.code is ErrorCode.NOT_COORDINATOR


def test_loading_reads_as_many_bytes_at_a_time_as_configured() -> None:
    story = Story(active=False)
    story.config = story.config._replace(load_buffer_bytes=77)
    story.load()
    assert story.log.read_sizes == [77]


def test_other_callbacks_run_during_a_long_load() -> None:
    story = Story(max_batch_bytes=1 << 30)
    records = 5 * TURN_ELEMENTS
    story.write(*("r" for _ in range(records)))
    story.run_ready()
    successor = Story(active=False)
    successor.log.batches = story.log.batches
    counts = []

    async def tick() -> None:
        while len(successor.shard.applied) < records:
            counts.append(len(successor.shard.applied))
            await asyncio.sleep(0)

    async def both() -> None:
        ticking = successor.loop.create_task(tick())
        await successor.environment.turns.run(successor.context.load())
        await ticking

    successor.loop.run_until_complete(both())
    assert len(successor.shard.applied) == records
    assert len({count // TURN_ELEMENTS for count in counts}) >= 4


def test_malformed_records_fail_the_load() -> None:
    story = Story(active=False)
    batch = build_batch([(1, b"a", b"v", ())])
    batch[61] = 0xFF
    story.log.append_internal(TP, batch)
    with pytest.raises(KafkaError):
        story.load()


def test_loading_stops_when_the_partition_is_closed() -> None:
    story = Story(active=False)
    story.log.append_internal(TP, build_batch([(1, b"a", b"v", ())]))
    task = story.loop.create_task(story.context.load())
    story.context.close(ErrorCode.NOT_COORDINATOR)
    story.run_ready()
    assert task.done()
    assert story.shard.replayed == []
