"""Loading, batching, pipelining and failing of one coordinator partition, on a toy state."""

import asyncio

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.internal_log import TransactionMarker
from kbroker.coordinator.runtime.batches import NOBODY, Producer
from kbroker.coordinator.runtime.coordinator_context import (
    LOADED_A_TURN,
    CoordinatorContext,
    Ended,
    Limits,
    Loaded,
    Status,
)
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, BatchHeader, build_batch, parse_header
from protocol.records.compression import ZSTD
from protocol.records.control import EndMarker, build_end_marker
from tests.unit.support.group_coordinator import MemoryLog, VirtualLoop, virtual_environment

TP = TopicPartition("__toy", 0)


class Toy:
    """Its records are texts; those that begin with ? are of a kind that it passes over."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.loaded: list[Loaded[str] | Ended] = []
        self.lost_with: ErrorCode | None = None

    def encode(self, record: str) -> tuple[bytes, bytes | None]:
        return record.encode(), b"v"

    def decode(self, key: bytes | None, value: bytes | None) -> str | None:
        text = (key or b"").decode()
        return None if text.startswith("?") else text

    def apply(self, record: str) -> None:
        self.applied.append(record)

    def load(self, item: Loaded[str] | Ended) -> None:
        self.loaded.append(item)

    def lost(self, error: ErrorCode) -> None:
        self.lost_with = error


class Stage:
    def __init__(self, *, max_bytes: int = 1 << 20, active: bool = True) -> None:
        self.loop = VirtualLoop()
        self.log = MemoryLog()
        self.toy = Toy()
        self.answers: list[tuple[str, ErrorCode]] = []
        self.limits = Limits(max_bytes)
        self.runtime: CoordinatorContext[str] = CoordinatorContext(
            virtual_environment(self.loop), self.log, TP, self.toy, lambda: self.limits
        )
        if active:
            self.runtime.activate()

    def write(self, *records: str, producer: Producer = NOBODY) -> None:
        self.runtime.write(records, lambda error: self.answers.append((records[0], error)), producer)

    def end(self, producer_id: int, *, committed: bool = True) -> None:
        marker = TransactionMarker(producer_id, 0, committed, 3, 1)
        self.runtime.write_marker(marker, lambda error: self.answers.append((f"end of {producer_id}", error)))

    def headers(self) -> list[BatchHeader]:
        return [parse_header(batch) for batch in self.log.batches.get(TP, [])]

    def load(self) -> None:
        self.loop.run_until_complete(self.runtime.load())

    def batches(self) -> int:
        return len(self.log.batches.get(TP, []))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_writes_of_one_turn_of_the_loop_share_an_append(stage: Stage) -> None:
    stage.write("a", "b")
    stage.write("c")
    assert stage.batches() == 0
    stage.loop.settle()
    assert (stage.batches(), stage.log.count()) == (1, 3)
    assert stage.toy.applied == ["a", "b", "c"]
    assert stage.answers == [("a", ErrorCode.NONE), ("c", ErrorCode.NONE)]
    stage.write("d")
    stage.loop.settle()
    assert stage.batches() == 2


def test_writes_are_gathered_for_a_while_when_that_is_asked_for(stage: Stage) -> None:
    stage.limits = stage.limits._replace(linger_ms=20)
    stage.write("a")
    stage.loop.pass_ms(19)
    stage.write("b")
    assert stage.batches() == 0
    stage.loop.pass_ms(1)
    assert (stage.batches(), stage.log.count()) == (1, 2)
    assert stage.answers == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]


def test_nothing_is_applied_or_answered_before_it_is_committed_but_writes_pipeline(stage: Stage) -> None:
    stage.log.held = True
    for record in ("a", "b", "c"):
        stage.write(record)
        stage.loop.settle()
    assert (stage.batches(), stage.toy.applied, stage.answers) == (3, [], [])
    stage.log.commit(1)
    assert (stage.toy.applied, stage.answers) == (["a"], [("a", ErrorCode.NONE)])
    stage.log.commit()
    assert stage.toy.applied == ["a", "b", "c"]


def test_a_high_watermark_that_jumps_settles_all_below_it_in_order(stage: Stage) -> None:
    stage.log.held = True
    for record in ("a", "b"):
        stage.write(record)
        stage.loop.settle()
    first, second = stage.log.waiting
    second.callback(ErrorCode.NONE)
    first.callback(ErrorCode.NONE)
    assert stage.toy.applied == ["a", "b"]
    assert stage.answers == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]


def test_a_batch_is_bounded() -> None:
    stage = Stage(max_bytes=400)
    for i in range(20):
        stage.write(f"{i}" * 30)
    stage.loop.settle()
    assert stage.log.count() == 20
    assert stage.batches() > 3
    assert all(len(batch) <= 400 for batch in stage.log.batches[TP])


def test_a_write_that_is_too_large_fails_alone(stage: Stage) -> None:
    stage.log.max_batch = 200
    stage.write("small")
    stage.write("large" * 100)
    stage.write("last")
    stage.loop.settle()
    assert [error for _, error in stage.answers] == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
    assert stage.toy.applied == ["small", "last"]


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_TIMESTAMP, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_a_refused_append_fails_its_writes_only(stage: Stage, refusal: ErrorCode, answer: ErrorCode) -> None:
    stage.log.refusal = refusal
    stage.write("a")
    stage.loop.settle()
    assert stage.answers == [("a", answer)]
    stage.log.refusal = None
    stage.write("b")
    stage.loop.settle()
    assert stage.toy.applied == ["b"]


def test_what_was_appended_and_cannot_be_committed_ends_the_partition(stage: Stage) -> None:
    stage.log.held = True
    stage.write("a")
    stage.loop.settle()
    stage.write("b")
    stage.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert stage.answers == [("a", ErrorCode.NOT_COORDINATOR), ("b", ErrorCode.NOT_COORDINATOR)]
    assert stage.toy.lost_with is ErrorCode.NOT_COORDINATOR
    stage.loop.settle()
    stage.write("c")
    stage.loop.settle()
    assert stage.answers[-1] == ("c", ErrorCode.NOT_COORDINATOR)
    assert (stage.toy.applied, stage.batches()) == ([], 1)


def test_a_late_commit_after_closing_changes_nothing(stage: Stage) -> None:
    stage.log.held = True
    stage.write("a")
    stage.loop.settle()
    stage.runtime.close(ErrorCode.NOT_COORDINATOR)
    stage.log.commit()
    assert (stage.toy.applied, stage.answers) == ([], [("a", ErrorCode.NOT_COORDINATOR)])


def test_what_transactions_write_has_batches_of_its_own_in_order(stage: Stage) -> None:
    seven, eight = Producer(7, 0), Producer(8, 0)
    stage.write("a")
    stage.write("b", "c", producer=seven)
    stage.write("d", producer=seven)
    stage.write("e", producer=eight)
    stage.write("f")
    stage.write("g")
    stage.loop.settle()
    headers = [(one.producer_id, one.producer_epoch, one.is_transactional, one.count) for one in stage.headers()]
    assert headers == [(-1, -1, False, 1), (7, 0, True, 3), (8, 0, True, 1), (-1, -1, False, 2)]
    assert [one.base_sequence for one in stage.headers()] == [-1, 0, 0, -1]
    stage.end(7)
    stage.end(8, committed=False)
    assert [error for _, error in stage.answers] == [ErrorCode.NONE] * 8
    assert stage.toy.applied == ["a", "f", "g"]
    assert stage.toy.loaded == [
        Loaded("b", 1, 7), Loaded("c", 2, 7), Loaded("d", 3, 7), Loaded("e", 4, 8), Ended(7, True), Ended(8, False),
    ]  # fmt: skip


def test_what_a_marker_has_overtaken_in_the_queue_is_not_written_any_more(stage: Stage) -> None:
    guard = stage.log.begin_verification(TP, 7, 0)
    stage.write("a", producer=Producer(7, 0, guard, True))
    stage.end(7, committed=False)
    stage.loop.settle()
    assert stage.answers == [("end of 7", ErrorCode.NONE), ("a", ErrorCode.INVALID_TXN_STATE)]


def test_transactions_are_taken_in_when_they_are_committed_and_as_loading_finds_them(stage: Stage) -> None:
    stage.log.held = True
    stage.write("a", producer=Producer(7, 0))
    stage.loop.settle()
    stage.end(7)
    assert (stage.toy.loaded, stage.answers) == ([], [])
    stage.log.commit(1)
    assert (stage.toy.loaded, stage.answers) == ([Loaded("a", 0, 7)], [("a", ErrorCode.NONE)])
    stage.log.commit()
    again = Stage(active=False)
    again.log.batches = stage.log.batches
    again.load()
    assert again.toy.loaded == stage.toy.loaded == [Loaded("a", 0, 7), Ended(7, True)]


def test_a_marker_that_the_log_refuses_ends_nothing(stage: Stage) -> None:
    stage.write("a", producer=Producer(7, 1))
    stage.loop.settle()
    stage.end(7)
    assert stage.answers[-1] == ("end of 7", ErrorCode.INVALID_PRODUCER_EPOCH)
    assert stage.toy.loaded == [Loaded("a", 0, 7)]


def test_markers_are_not_for_a_partition_that_is_loaded_or_closed(stage: Stage) -> None:
    loading = Stage(active=False)
    loading.end(7)
    stage.log.held = True
    stage.end(7)
    stage.runtime.close(ErrorCode.NOT_COORDINATOR)
    stage.end(8)
    stage.log.commit()
    assert loading.answers == [("end of 7", ErrorCode.NOT_COORDINATOR)]
    # The first one is in the log; whoever loads that finds it.
    assert stage.answers == [("end of 8", ErrorCode.NOT_COORDINATOR), ("end of 7", ErrorCode.NOT_COORDINATOR)]
    assert (stage.batches(), stage.toy.loaded) == (1, [])


def test_loading_reads_every_batch_and_passes_over_unknown_kinds() -> None:
    stage = Stage(active=False)
    append = stage.log.append_internal
    append(TP, build_batch([(1, b"a", b"v", ()), (1, b"?", b"v", ())], codec=ZSTD))
    append(TP, build_batch([(1, b"b", None, ())], attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0))
    append(TP, build_end_marker(EndMarker(True, 0), 7, 0, 1))
    append(TP, build_end_marker(EndMarker(False, 0), 8, 0, 1))
    append(TP, build_batch([(1, b"c", b"v", ())]))
    stage.load()
    assert stage.toy.loaded == [
        Loaded("a", 0, -1),
        Loaded("b", 2, 7),
        Ended(7, True),
        Ended(8, False),
        Loaded("c", 5, -1),
    ]
    assert stage.runtime.status is Status.LOADING


@pytest.mark.parametrize("error", [OSError("disk"), KeyError("gone")])
def test_a_partition_that_cannot_be_read_is_not_ours(error: Exception) -> None:
    stage = Stage(active=False)
    stage.log.read_error = error
    with pytest.raises(KafkaError) as failed:
        stage.load()
    assert failed.value.code is ErrorCode.NOT_COORDINATOR


def test_loading_reads_as_much_at_a_time_as_is_configured() -> None:
    stage = Stage(active=False)
    stage.limits = stage.limits._replace(load_bytes=77)
    stage.load()
    assert stage.log.read_sizes == [77]


def test_a_long_load_gives_others_their_turns() -> None:
    stage = Stage()
    stage.limits = stage.limits._replace(batch_bytes=1 << 30)
    stage.write(*("r" for _ in range(5 * LOADED_A_TURN)))
    stage.loop.settle()
    again = Stage(active=False)
    again.log.batches = stage.log.batches
    turns = []

    async def tick() -> None:
        while len(again.toy.loaded) < 5 * LOADED_A_TURN:
            turns.append(len(again.toy.loaded))
            await asyncio.sleep(0)

    async def both() -> None:
        ticking = again.loop.create_task(tick())
        await again.runtime.load()
        await ticking

    again.loop.run_until_complete(both())
    assert len(again.toy.loaded) == 5 * LOADED_A_TURN
    assert len({count // LOADED_A_TURN for count in turns}) >= 4


def test_bytes_that_are_no_records_end_loading() -> None:
    stage = Stage(active=False)
    batch = build_batch([(1, b"a", b"v", ())])
    batch[61] = 0xFF
    stage.log.append_internal(TP, batch)
    with pytest.raises(KafkaError):
        stage.load()


def test_loading_stops_when_the_partition_is_given_up() -> None:
    stage = Stage(active=False)
    stage.log.append_internal(TP, build_batch([(1, b"a", b"v", ())]))
    task = stage.loop.create_task(stage.runtime.load())
    stage.runtime.close(ErrorCode.NOT_COORDINATOR)
    stage.loop.settle()
    assert task.done()
    assert stage.toy.loaded == []
