"""One coordinator partition with a toy state: appends, replay, locks, timeouts, loading, closing."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.runtime.coordinator_context import (
    WRITES_PER_ITERATION,
    CoordinatorContext,
    CoordinatorState,
    RuntimeConfig,
)
from kbroker.coordinator.runtime.loader import LOADED_RECORDS_PER_ITERATION
from kbroker.coordinator.runtime.operation import (
    NO_PRODUCER,
    CoordinatorResult,
    LockMode,
    RecordProducer,
)
from kbroker.storage.producers.transaction_marker import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, BatchHeader, build_batch, parse_header
from protocol.records.compression import ZSTD
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.internal_log import MemoryLog, VirtualLoop, virtual_environment

TP = TopicPartition("__toy", 0)


class ToyShard:
    """Its records are texts. A text that begins with ? is a record of an unknown type."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        # (text, offset, producer id), and (producer id, committed) for a marker.
        self.replayed: list[tuple[Any, ...]] = []
        self.is_loaded = False
        self.unloaded_with: ErrorCode | None = None

    def encode(self, record: str) -> tuple[bytes, bytes | None]:
        return record.encode(), b"v"

    def decode(self, key: bytes | None, value: bytes | None) -> str | None:
        text = (key or b"").decode()
        return None if text.startswith("?") else text

    def replay(self, record: str, offset: int, producer_id: int) -> None:
        self.applied.append(record)
        self.replayed.append((record, offset, producer_id))

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        self.replayed.append((producer_id, committed))

    def on_loaded(self) -> None:
        self.is_loaded = True

    def on_unloaded(self, error: ErrorCode) -> None:
        self.unloaded_with = error


class Story:
    def __init__(self, *, max_batch_bytes: int = 1 << 20, active: bool = True) -> None:
        self.loop = VirtualLoop()
        self.log = MemoryLog()
        self.shard = ToyShard()
        self.results: list[tuple[str, ErrorCode]] = []
        self.config = RuntimeConfig(1, 1, max_batch_bytes, 5 << 20)
        self.context: CoordinatorContext[ToyShard] = CoordinatorContext(
            virtual_environment(self.loop), self.log, TP, 0, lambda: self.config
        )
        self.context.shard = self.shard
        if active:
            self.context.activate()

    def write(
        self,
        *records: str,
        key: str = "key",
        mode: LockMode = LockMode.NONE,
        timeout_ms: int | None = None,
        producer: RecordProducer = NO_PRODUCER,
        on_failed: Callable[[ErrorCode], None] = lambda error: None,
    ) -> None:
        """Write records; the result is recorded under the first one."""
        result = CoordinatorResult(None, records, on_failed=on_failed)
        future = self.context.schedule_write(lambda shard: result, key, mode, timeout_ms, producer)
        future.add_done_callback(lambda future: self.results.append((records[0], error_of(future))))

    def end(self, producer_id: int, *, committed: bool = True) -> None:
        marker = TransactionMarker(producer_id, 0, committed, 3, 1)
        self.context.complete_transaction(marker, lambda error: self.results.append((f"end of {producer_id}", error)))

    def load(self) -> None:
        self.loop.run_until_complete(self.context.load())

    def run_ready(self) -> None:
        self.loop.run_ready()

    def headers(self) -> list[BatchHeader]:
        return [parse_header(batch) for batch in self.log.batches.get(TP, [])]


def error_of(future: "asyncio.Future[Any]") -> ErrorCode:
    error = future.exception()
    if error is None:
        return ErrorCode.NONE
    assert isinstance(error, KafkaError)
    return error.code


@pytest.fixture
def story() -> Story:
    return Story()


# Appends and replay.


def test_writes_of_one_loop_iteration_share_an_append(story: Story) -> None:
    story.write("a", "b")
    story.write("c")
    assert story.headers() == []
    story.run_ready()
    assert (len(story.headers()), story.log.record_count()) == (1, 3)
    assert story.shard.replayed == [("a", 0, -1), ("b", 1, -1), ("c", 2, -1)]
    assert story.results == [("a", ErrorCode.NONE), ("c", ErrorCode.NONE)]
    story.write("d")
    story.run_ready()
    assert len(story.headers()) == 2


def test_many_writes_are_appended_in_several_iterations(story: Story) -> None:
    records = [str(number) for number in range(WRITES_PER_ITERATION + 2)]
    for record in records:
        story.write(record)
    story.run_ready()
    assert [header.count for header in story.headers()] == [WRITES_PER_ITERATION, 2]
    assert story.shard.applied == records
    assert [record for record, _ in story.results] == records


def test_writes_between_the_appends_of_many_keep_their_order(story: Story) -> None:
    def write_more(response: None, error: KafkaError | None) -> None:
        story.write("more")

    story.context.write(lambda shard: CoordinatorResult(None, ["0"]), write_more)
    for number in range(1, WRITES_PER_ITERATION + 1):
        story.write(str(number))
    story.run_ready()
    assert story.shard.applied == [*map(str, range(WRITES_PER_ITERATION + 1)), "more"]


def test_a_closed_partition_fails_the_writes_of_later_iterations(story: Story) -> None:
    def close(response: None, error: KafkaError | None) -> None:
        story.context.close(ErrorCode.NOT_COORDINATOR)

    story.context.write(lambda shard: CoordinatorResult(None, ["0"]), close)
    for number in range(1, WRITES_PER_ITERATION + 1):
        story.write(str(number))
    story.run_ready()
    assert dict(story.results)[str(WRITES_PER_ITERATION)] is ErrorCode.NOT_COORDINATOR
    assert len(story.headers()) == 1


def test_writes_are_collected_for_the_linger_time(story: Story) -> None:
    story.config = story.config._replace(append_linger_ms=20)
    story.write("a")
    story.loop.pass_ms(19)
    story.write("b")
    assert story.headers() == []
    story.loop.pass_ms(1)
    assert (len(story.headers()), story.log.record_count()) == (1, 2)
    assert story.results == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]


def test_nothing_is_replayed_before_it_is_committed_but_writes_are_pipelined(story: Story) -> None:
    story.log.held = True
    for record in ("a", "b", "c"):
        story.write(record)
        story.run_ready()
    assert (len(story.headers()), story.shard.applied, story.results) == (3, [], [])
    story.log.commit(1)
    story.run_ready()
    assert (story.shard.applied, story.results) == (["a"], [("a", ErrorCode.NONE)])
    story.log.commit()
    assert story.shard.applied == ["a", "b", "c"]


def test_a_high_watermark_that_jumps_commits_all_writes_below_it_in_order(story: Story) -> None:
    story.log.held = True
    for record in ("a", "b"):
        story.write(record)
        story.run_ready()
    first, second = story.log.waiting
    second.callback(ErrorCode.NONE)
    first.callback(ErrorCode.NONE)
    story.run_ready()
    assert story.shard.applied == ["a", "b"]
    assert story.results == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]


def test_the_size_of_a_batch_is_limited() -> None:
    story = Story(max_batch_bytes=400)
    for i in range(20):
        story.write(f"{i}" * 30)
    story.run_ready()
    assert story.log.record_count() == 20
    assert len(story.headers()) > 3
    assert all(len(batch) <= 400 for batch in story.log.batches[TP])


def test_a_write_that_is_too_large_fails_alone(story: Story) -> None:
    story.log.max_batch = 200
    story.write("small")
    story.write("large" * 100)
    story.write("last")
    story.run_ready()
    assert [error for _, error in story.results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    assert story.shard.applied == ["small", "last"]


@pytest.mark.parametrize(
    ("append_error", "result"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_a_failed_append_fails_its_writes_only(story: Story, append_error: ErrorCode, result: ErrorCode) -> None:
    failed: list[ErrorCode] = []
    story.log.append_error = append_error
    story.write("a", on_failed=failed.append)
    story.run_ready()
    assert story.results == [("a", result)]
    assert failed == [result]
    story.log.append_error = None
    story.write("b")
    story.run_ready()
    assert story.shard.applied == ["b"]


def test_an_append_that_can_no_longer_be_committed_closes_the_partition(story: Story) -> None:
    story.log.held = True
    story.write("a")
    story.run_ready()
    story.write("b")
    story.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert story.shard.unloaded_with is ErrorCode.NOT_COORDINATOR
    story.run_ready()
    assert story.results == [("a", ErrorCode.NOT_COORDINATOR), ("b", ErrorCode.NOT_COORDINATOR)]
    story.write("c")
    story.run_ready()
    assert story.results[-1] == ("c", ErrorCode.NOT_COORDINATOR)
    assert (story.shard.applied, len(story.headers())) == ([], 1)


def test_a_commit_after_closing_changes_nothing(story: Story) -> None:
    story.log.held = True
    story.write("a")
    story.run_ready()
    story.context.close(ErrorCode.NOT_COORDINATOR)
    story.log.commit()
    story.run_ready()
    assert (story.shard.applied, story.results) == ([], [("a", ErrorCode.NOT_COORDINATOR)])


# Operations.


def test_an_operation_without_records_responds_at_once(story: Story) -> None:
    story.log.held = True
    future = story.context.schedule_write(lambda shard: CoordinatorResult("done"), "key", LockMode.EXCLUSIVE)
    assert future.result() == "done"
    assert story.context.locked_keys() == []


def test_an_operation_that_raises_fails_its_future(story: Story) -> None:
    def operation(shard: ToyShard) -> CoordinatorResult[None]:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    assert error_of(story.context.schedule_write(operation, "key", LockMode.NONE)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_response_comes_after_the_replay_and_the_callback(story: Story) -> None:
    order: list[str] = []

    def on_committed() -> None:
        order.append(f"committed {story.shard.applied}")

    result = CoordinatorResult("done", ["a"], on_committed)
    future = story.context.schedule_write(lambda shard: result, "key", LockMode.NONE)
    future.add_done_callback(lambda _: order.append("done"))
    story.run_ready()
    assert order == ["committed ['a']", "done"]


def test_operations_on_a_key_wait_for_an_exclusive_write_and_other_keys_do_not(story: Story) -> None:
    story.log.held = True
    story.write("a", mode=LockMode.EXCLUSIVE)
    story.write("b", mode=LockMode.SHARED)
    story.write("c", key="other", mode=LockMode.SHARED)
    story.write("d", mode=LockMode.NONE)
    story.run_ready()
    assert story.log.record_count() == 3
    assert story.context.locked_keys() == ["key", "other"]
    story.log.commit()
    story.run_ready()
    assert story.shard.applied == ["a", "c", "d"]
    story.log.commit()
    story.run_ready()
    assert story.shard.applied == ["a", "c", "d", "b"]
    assert story.context.locked_keys() == []


def test_waiting_operations_fail_when_the_partition_is_closed(story: Story) -> None:
    story.log.held = True
    story.write("a", mode=LockMode.EXCLUSIVE)
    story.write("b", mode=LockMode.EXCLUSIVE)
    story.run_ready()
    story.context.close(ErrorCode.NOT_COORDINATOR)
    story.run_ready()
    assert sorted(story.results) == [("a", ErrorCode.NOT_COORDINATOR), ("b", ErrorCode.NOT_COORDINATOR)]
    assert story.context.locked_keys() == []


# Timeouts.


LATE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_write_that_is_not_committed_in_time_fails_and_may_be_committed_later(story: Story) -> None:
    story.log.held = True
    story.write("a", timeout_ms=100)
    story.loop.pass_ms(60)
    story.write("b", timeout_ms=300)
    story.loop.pass_ms(39)
    assert story.results == []
    story.loop.pass_ms(1)
    assert story.results == [("a", LATE)]
    story.log.commit()
    story.run_ready()
    assert story.results == [("a", LATE), ("b", ErrorCode.NONE)]
    assert story.shard.applied == ["a", "b"]
    story.loop.pass_ms(1000)
    assert len(story.results) == 2


def test_a_write_holds_its_lock_after_its_timeout(story: Story) -> None:
    story.log.held = True
    story.write("a", mode=LockMode.SHARED, timeout_ms=100)
    story.write("b", mode=LockMode.EXCLUSIVE_AFTER_SHARED)
    story.loop.pass_ms(200)
    assert (story.results, story.log.record_count()) == ([("a", LATE)], 1)
    story.log.commit()
    story.run_ready()
    assert story.log.record_count() == 2


def test_a_committed_write_has_no_timeout(story: Story) -> None:
    story.write("a", timeout_ms=100)
    story.run_ready()
    assert len(story.context._timeouts) == 0


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
    story.write(*("r" for _ in range(5 * LOADED_RECORDS_PER_ITERATION)))
    story.run_ready()
    successor = Story(active=False)
    successor.log.batches = story.log.batches
    counts = []

    async def tick() -> None:
        while len(successor.shard.applied) < 5 * LOADED_RECORDS_PER_ITERATION:
            counts.append(len(successor.shard.applied))
            await asyncio.sleep(0)

    async def both() -> None:
        ticking = successor.loop.create_task(tick())
        await successor.context.load()
        await ticking

    successor.loop.run_until_complete(both())
    assert len(successor.shard.applied) == 5 * LOADED_RECORDS_PER_ITERATION
    assert len({count // LOADED_RECORDS_PER_ITERATION for count in counts}) >= 4


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
