"""One coordinator partition with a toy state: appends, replay, locks, timeouts, loading, closing."""

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.runtime.coordinator_context import (
    WRITES_PER_ITERATION,
)
from kbroker.coordinator.runtime.operation import (
    CoordinatorResult,
    LockMode,
)
from protocol.errors import ErrorCode
from tests.unit.support.coordinator_context import TP, Story, ToyShard, error_of


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
