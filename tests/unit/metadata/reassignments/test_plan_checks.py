"""What makes a plan of reassignments invalid: one row for each reason."""

from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration, TopicImage
from kbroker.metadata.reassignments.placement.reassignment_plan import GivenMove
from kbroker.metadata.reassignments.plan_checks import MAX_MOVES, RequestedPlan, check_plan
from kbroker.metadata.reassignments.stored_plan import StoredMove
from kbroker.runtime.slices import run_to_end
from protocol.errors import ErrorCode

RACKS = dict.fromkeys([1, 2, 3])
TOPIC_ID = bytes([7]) * 16
TOPICS = {
    "t": TopicImage(
        "t",
        TOPIC_ID,
        partitions=[
            PartitionRegistration(1, 0, [1, 2], [1, 2]),
            PartitionRegistration(1, 0, [1, 2, 3], [1, 2], adding_replicas=[3]),
        ],
    )
}


def move(topic: str = "t", partition: int = 0, original: Any = (1, 2), target: Any = (3, 2)) -> GivenMove:
    return GivenMove(topic, partition, original, target)


def check(*moves: GivenMove, description: str = "", throttle: int = -1, concurrent: int = 1) -> list[StoredMove]:
    return run_to_end(check_plan(RequestedPlan(description, throttle, concurrent, moves), TOPICS, RACKS))


def test_a_valid_plan() -> None:
    assert check(move(), throttle=1) == [StoredMove("t", TOPIC_ID, 0, (1, 2), (3, 2))]


@pytest.mark.parametrize(
    ("original", "target", "reason"),
    [
        ((1, 3), (1, 2), "from a, b to a, a"),
        ((1, 3), (3, 4, 1), None),
        ((1, 3), (1, 2, 5), "from a, b to a, a, a"),
        ((1, 2), (5, 2), None),
        ((1, 2, 3), (1, 3), None),
        ((1, 2, 3), (1, 2), None),  # fewer replicas
        ((1, 9), (1, 2), "from a, none to a, a"),
        ((1, 3, 6), (1, 3, 4), "from a, b, none to a, b, b"),
    ],
)
def test_a_partition_may_not_get_into_fewer_racks(
    original: tuple[int, ...], target: tuple[int, ...], reason: str | None
) -> None:
    racks = {1: "a", 2: "a", 5: "a", 3: "b", 4: "b", 6: None}
    partition = PartitionRegistration(original[0], 0, list(original), list(original))
    topics = {"t": TopicImage("t", TOPIC_ID, partitions=[partition])}
    plan = RequestedPlan("", -1, 1, [move(original=original, target=target)])
    allowed = [StoredMove("t", TOPIC_ID, 0, original, target)]
    assert run_to_end(check_plan(plan._replace(allow_fewer_racks=True), topics, racks)) == allowed
    if reason is None:
        assert run_to_end(check_plan(plan, topics, racks)) == allowed
        return
    with pytest.raises(KafkaError) as refused:
        run_to_end(check_plan(plan, topics, racks))
    assert refused.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert refused.value.message == f"The partition t-0 would be in fewer racks: {reason}."


@pytest.mark.parametrize(
    ("moves", "options", "code", "message"),
    [
        ([], {}, ErrorCode.INVALID_REQUEST, "The plan has no moves."),
        ([move()] * (MAX_MOVES + 1), {}, ErrorCode.INVALID_REQUEST,
         "The plan has 10001 moves; at most 10000 are possible."),
        ([move()], {"description": "d" * 1001}, ErrorCode.INVALID_REQUEST,
         "The description has more than 1000 characters."),
        ([move()], {"concurrent": 0}, ErrorCode.INVALID_REQUEST, "The number of concurrent moves must be at least 1."),
        ([move()], {"throttle": 0}, ErrorCode.INVALID_REQUEST,
         "The throttle must be at least 1 byte per second, or -1 for none."),
        ([move(), move(target=(1,))], {}, ErrorCode.INVALID_REQUEST, "The plan has more than one move of t-0."),
        ([move("u")], {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition u-0 does not exist."),
        ([move(partition=2)], {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition t-2 does not exist."),
        ([move(partition=-1)], {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition t--1 does not exist."),
        ([move(partition=1)], {}, ErrorCode.REASSIGNMENT_IN_PROGRESS, "The partition t-1 is already being reassigned."),
        ([move(original=(2, 1))], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "The partition t-0 has the replicas [1, 2], not [2, 1] as in the plan."),
        ([move(target=(1, 2))], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "The partition t-0 already has the replicas [1, 2]."),
        ([move(target=())], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "The partition t-0: The manual partition assignment includes an empty replica list."),
        ([move(target=(3, 3))], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "The partition t-0: The manual partition assignment includes the broker 3 more than once."),
        ([move(target=(9,))], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
         "The partition t-0: The manual partition assignment includes broker 9, but no such broker is registered."),
    ],
)  # fmt: skip
def test_a_plan_that_is_refused(moves: list[GivenMove], options: Any, code: ErrorCode, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check(*moves, **options)
    assert (refused.value.code, refused.value.message) == (code, message)
