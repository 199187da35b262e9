"""ORDERED operations: each sees what those before it have written, and responses wait for the commits."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from kbroker.coordinator.runtime.write_event import RECORDS_PER_BATCH
from protocol.errors import ErrorCode
from tests.unit.coordinator.runtime.test_elections import NODE, TP
from tests.unit.coordinator.runtime.test_elections import Story as ClusterStory
from tests.unit.support.coordinator_context import Story, ToyShard, error_of

ORDERED, EXCLUSIVE, SHARED = LockMode.ORDERED, LockMode.EXCLUSIVE, LockMode.SHARED
FAILED = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
def story() -> Story:
    story = Story()
    story.log.held = True
    return story


def read(story: Story, name: str, key: str = "key", mode: LockMode = ORDERED, timeout_ms: int | None = None) -> None:
    """Read the whole state; the result is recorded as `name: state`."""

    def respond(state: str | None, error: KafkaError | None) -> None:
        story.results.append((f"{name}: {state or ''}", ErrorCode.NONE if error is None else error.code))

    story.context.write(lambda shard: CoordinatorResult("".join(shard.applied)), respond, key, mode, timeout_ms)


def test_an_operation_sees_the_records_of_those_before_it_and_shares_their_append(story: Story) -> None:
    seen: list[list[str]] = []

    def join(name: str) -> Callable[[ToyShard], CoordinatorResult[str]]:
        def operation(shard: ToyShard) -> CoordinatorResult[str]:
            seen.append(list(shard.applied))
            return CoordinatorResult(name, [name])

        return operation

    futures = [story.context.schedule_write(join(name), "key", ORDERED) for name in "abc"]
    assert seen == [[], ["a"], ["a", "b"]]
    story.run_ready()
    assert [header.count for header in story.headers()] == [3]
    assert not any(future.done() for future in futures)
    story.log.commit()
    assert [future.result() for future in futures] == ["a", "b", "c"]
    assert story.shard.replayed == [("a", -1, -1), ("b", -1, -1), ("c", -1, -1)]
    assert story.context.locked_keys() == []


def test_a_read_responds_when_the_last_write_of_its_key_is_committed(story: Story) -> None:
    read(story, "nothing in flight")
    story.write("a", mode=ORDERED)
    story.run_ready()
    read(story, "after a")
    story.write("b", mode=ORDERED)
    story.run_ready()
    read(story, "after b")
    read(story, "other key", key="other")
    assert story.results == [("nothing in flight: ", ErrorCode.NONE), ("other key: ab", ErrorCode.NONE)]
    del story.results[:]
    story.log.commit(1)
    story.run_ready()
    assert story.results == [("after a: a", ErrorCode.NONE), ("a", ErrorCode.NONE)]
    story.log.commit()
    story.run_ready()
    assert story.results[2:] == [("after b: ab", ErrorCode.NONE), ("b", ErrorCode.NONE)]


def test_a_read_that_a_response_causes_responds_too(story: Story) -> None:
    """The write is settled at this time, so nothing later would complete the read."""
    story.context.write(lambda shard: CoordinatorResult(None, ["a"]), lambda *_: read(story, "next"), "key", ORDERED)
    story.run_ready()
    story.log.commit()
    assert story.results == [("next: a", ErrorCode.NONE)]


def test_an_error_that_depends_on_uncommitted_records_waits_for_them(story: Story) -> None:
    def fail(shard: ToyShard) -> CoordinatorResult[None]:
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH)

    story.write("a", mode=ORDERED)
    futures = [story.context.schedule_write(fail, "key", mode) for mode in (ORDERED, SHARED)]
    story.run_ready()
    assert not any(future.done() for future in futures)
    story.log.commit()
    assert [error_of(future) for future in futures] == [ErrorCode.FENCED_MEMBER_EPOCH] * 2


def test_a_response_that_waits_too_long_is_an_error(story: Story) -> None:
    story.write("a", mode=ORDERED, timeout_ms=100)
    story.run_ready()
    read(story, "read", timeout_ms=50)
    story.loop.pass_ms(200)
    assert story.results == [("read: ", FAILED), ("a", FAILED)]
    story.log.commit()
    story.run_ready()
    assert len(story.results) == 2


def test_ordered_and_exclusive_operations_wait_for_each_other(story: Story) -> None:
    for record, mode in (("a", ORDERED), ("b", ORDERED), ("c", EXCLUSIVE), ("d", ORDERED), ("e", ORDERED)):
        story.write(record, mode=mode)
    story.run_ready()
    assert (story.shard.applied, story.log.record_count()) == (["a", "b"], 2)
    story.log.commit()
    story.run_ready()
    # The exclusive write is replayed when it is committed.
    assert (story.shard.applied, story.log.record_count()) == (["a", "b"], 3)
    story.log.commit()
    story.run_ready()
    assert (story.shard.applied, story.log.record_count()) == (["a", "b", "c", "d", "e"], 5)
    story.log.commit()
    story.run_ready()
    assert [record for record, _ in story.results] == ["a", "b", "c", "d", "e"]
    assert story.context.locked_keys() == []


def test_commits_are_pipelined_with_ordered_operations(story: Story) -> None:
    """A commit sees the member epoch that is not committed yet. Its own records are replayed at their commit."""
    story.write("a", mode=ORDERED)
    story.write("commit", mode=SHARED)
    story.write("b", mode=ORDERED)
    story.run_ready()
    assert ([header.count for header in story.headers()], story.shard.applied) == ([3], ["a", "b"])
    story.log.commit()
    story.run_ready()
    assert story.shard.replayed == [("a", -1, -1), ("b", -1, -1), ("commit", 1, -1)]
    assert [record for record, _ in story.results] == ["a", "commit", "b"]


# Large writes.


@pytest.mark.parametrize("mode", [ORDERED, EXCLUSIVE])
def test_a_large_write_has_several_batches_and_one_response(mode: LockMode) -> None:
    story = Story(max_batch_bytes=400)
    story.log.held = True
    records = [f"{number}" * 30 for number in range(20)]
    story.write("small", key="s", mode=mode)
    story.write(*records, mode=mode)
    story.write("last", key="l", mode=mode)
    story.run_ready()
    assert len(story.headers()) > 3
    assert all(len(batch) <= 400 for batch in story.log.batches[TP])
    for count in range(1, 4):
        story.log.commit(1)
        story.run_ready()
        assert [record for record, _ in story.results] == ["small", records[0], "last"][:count]
    offsets = range(22) if mode is EXCLUSIVE else [-1] * 22
    written = ["small", *records, "last"]
    assert story.shard.replayed == [(text, offset, -1) for text, offset in zip(written, offsets, strict=True)]


def test_others_run_between_the_batches_of_a_large_write(story: Story) -> None:
    """A target has a record for each of 10,000 members, whose encoding takes 15 ms."""
    story.write(*map(str, range(2 * RECORDS_PER_BATCH + 1)), mode=ORDERED)
    story.write("next", mode=ORDERED)
    appended: list[int] = []

    def count() -> None:
        appended.append(story.log.record_count())
        if len(story.log.waiting) < 2:
            story.loop.call_soon(count)

    count()
    while len(story.log.waiting) < 2:
        story.run_ready()
    batches = [after - before for before, after in pairwise(appended) if after > before]
    assert batches == [RECORDS_PER_BATCH, RECORDS_PER_BATCH, 2]
    story.log.commit()
    story.run_ready()
    assert [record for record, _ in story.results] == ["0", "next"]


def test_a_record_that_is_too_large_is_not_replayed(story: Story) -> None:
    story.log.max_batch = 1000
    failed: list[ErrorCode] = []
    story.write("a", mode=ORDERED)
    story.write("b", "large" * 200, mode=ORDERED, on_failed=failed.append)
    story.write("c", mode=ORDERED)
    story.run_ready()
    assert (story.shard.applied, failed) == (["a", "c"], [ErrorCode.UNKNOWN_SERVER_ERROR])
    assert story.results == [("b", ErrorCode.UNKNOWN_SERVER_ERROR)]


# Appends that fail.


def test_nothing_is_replayed_when_it_is_known_that_the_append_would_fail(story: Story) -> None:
    story.log.is_under_min_isr = True
    story.write("a", mode=ORDERED)
    story.run_ready()
    assert (story.shard.applied, story.results) == ([], [("a", FAILED)])
    story.log.is_under_min_isr = False
    story.write("b", mode=ORDERED)
    assert story.shard.applied == ["b"]
    assert story.shard.unloaded_with is None


def elected() -> ClusterStory:
    story = ClusterStory()
    story.elect(NODE, 1)
    story.loop.run_ready()
    return story


def write(story: ClusterStory, text: str, mode: LockMode, key: str = "key"):  # type: ignore[no-untyped-def]
    return story.context().schedule_write(lambda shard: CoordinatorResult(None, [text]), key, mode)


def test_an_append_that_fails_after_the_replay_loads_the_partition_again() -> None:
    story = elected()
    story.log.held = True
    appended = write(story, "appended", ORDERED)
    story.loop.run_ready()
    context, replayed = story.context(), write(story, "replayed", ORDERED)
    others = [
        write(story, "commit", SHARED),
        write(story, "waiting", EXCLUSIVE),
        context.schedule_write(lambda shard: CoordinatorResult("read"), "key", ORDERED),
        write(story, "other", ORDERED, key="other"),
    ]
    assert story.state() == ["a", "appended", "replayed", "other"]
    story.log.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    story.loop.run_ready()
    futures = [appended, replayed, *others]
    assert {error_of(future) for future in futures} == {ErrorCode.NOT_COORDINATOR}
    assert story.state() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # Records in flight may still be committed, so the partition waits for them, in the same leader epoch.
    story.log.append_error = None
    story.log.commit()
    story.loop.run_ready()
    assert (story.state(), story.context().epoch) == (["a", "appended"], 1)
    assert story.context() is not context
    story.log.held = False
    write(story, "again", ORDERED)
    story.loop.run_ready()
    assert story.state() == ["a", "appended", "again"]


def test_a_large_write_of_which_a_part_was_appended_loads_the_partition_again() -> None:
    """The part is in the log, so it is replayed like any other record."""
    story = elected()
    context = story.context()
    texts = [f"{number}" * 300_000 for number in range(4)]
    future = context.schedule_write(lambda shard: CoordinatorResult(None, texts), "key", EXCLUSIVE)
    append, batches = story.log.append_internal, 0

    def append_one(*arguments: object, **keywords: object) -> int:
        nonlocal batches
        batches += 1
        if batches == 2:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return append(*arguments, **keywords)  # type: ignore[arg-type]

    story.log.append_internal = append_one  # type: ignore[method-assign]
    story.loop.run_ready()
    assert error_of(future) is FAILED
    assert story.context() is not context
    assert story.state() == ["a", *texts[:3]]


def test_a_replay_that_raises_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    story = elected()
    replay = ToyShard.replay

    def fail(shard: ToyShard, record: str, offset: int, producer_id: int) -> None:
        if record == "bad":
            raise ZeroDivisionError
        replay(shard, record, offset, producer_id)

    monkeypatch.setattr(ToyShard, "replay", fail)
    with pytest.raises(ZeroDivisionError):
        story.context().schedule_write(lambda shard: CoordinatorResult(None, ["good", "bad"]), "key", ORDERED)
    story.loop.run_ready()
    assert story.state() == ["a"]


def test_an_operation_of_a_partition_that_is_lost_meanwhile_has_no_effect(story: Story) -> None:
    story.write("a", mode=ORDERED)
    story.run_ready()
    story.write("b", mode=ORDERED)
    read(story, "read")
    story.context.close(ErrorCode.NOT_COORDINATOR)
    story.write("c", mode=ORDERED)
    story.run_ready()
    assert {error for _, error in story.results} == {ErrorCode.NOT_COORDINATOR}
    assert len(story.results) == 4
    assert (story.log.record_count(), story.context.locked_keys()) == (1, [])
