"""What makes a plan of reassignments invalid, one row for each reason; and the configs of its throttle.

The throttle overwrites no existing configs, and its end removes exactly those that it has set.
"""

from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import (
    MAX_MOVES,
    RequestedPlan,
    check_plan,
    check_throttle,
    with_throttle,
    without_throttle,
)
from kbroker.metadata.reassignments.stored_plan import PlanState, StoredMove, StoredPlan
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


def move(topic: str = "t", partition: int = 0, original: Any = (1, 2), target: Any = (3, 2)) -> PartitionMove:
    return PartitionMove(topic, partition, original, target)


def check(*moves: PartitionMove, description: str = "", throttle: int = -1, concurrent: int = 1) -> list[StoredMove]:
    return check_plan(RequestedPlan(description, throttle, concurrent, moves), TOPICS, RACKS)


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
    assert check_plan(plan._replace(allow_fewer_racks=True), topics, racks) == allowed
    if reason is None:
        assert check_plan(plan, topics, racks) == allowed
        return
    with pytest.raises(KafkaError) as refused:
        check_plan(plan, topics, racks)
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
def test_a_plan_that_is_refused(moves: list[PartitionMove], options: Any, code: ErrorCode, message: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check(*moves, **options)
    assert (refused.value.code, refused.value.message) == (code, message)


BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
T, U = ConfigResource(ConfigResourceType.TOPIC, "t"), ConfigResource(ConfigResourceType.TOPIC, "u")
LEADER, FOLLOWER = "leader.replication.throttled.", "follower.replication.throttled."
RATES = {LEADER + "rate": "1000", FOLLOWER + "rate": "1000"}
REPLICAS = {LEADER + "replicas": "0:1,0:2,0:3,2:1,2:2", FOLLOWER + "replicas": "0:1,0:3,2:1,2:2"}
PLAN = StoredPlan(
    1, "", PlanState.RUNNING, 1000, 1, 0,
    (
        StoredMove("t", bytes(16), 2, (1,), (2,)),
        StoredMove("t", bytes(16), 0, (1, 2), (3, 2)),
        StoredMove("t", bytes(16), 1, (1, 2), (2, 1)),
        StoredMove("u", bytes(16), 0, (1, 2), (2, 1)),
    ),
)  # fmt: skip


def image_with(configs: dict[ConfigResource, dict[str, str]]) -> MetadataImage:
    image = MetadataImage()
    image.apply(MetadataDelta(configs=configs))
    return image


def test_the_configs_are_set_and_removed() -> None:
    """A move that only changes the order of the replicas copies nothing."""
    other = {"retention.ms": "1"}
    throttled = with_throttle(PLAN, image_with({T: other, U: other}))
    assert throttled == {BROKERS: RATES, T: REPLICAS | other}
    image = image_with(throttled)
    assert with_throttle(PLAN, image) == {}
    assert without_throttle(PLAN, image) == {BROKERS: {}, T: other}
    assert without_throttle(PLAN, image_with({T: other, U: other})) == {}


def test_what_somebody_has_changed_meanwhile_stays() -> None:
    image = image_with({BROKERS: RATES | {LEADER + "rate": "7"}, T: {LEADER + "replicas": "*"}})
    assert without_throttle(PLAN, image) == {BROKERS: {LEADER + "rate": "7"}}
    assert with_throttle(PLAN, image) == {T: REPLICAS | {LEADER + "replicas": "*"}}


@pytest.mark.parametrize(
    ("resource", "config", "subject"),
    [
        (BROKERS, LEADER + "rate", "The default of all brokers"),
        (ConfigResource(ConfigResourceType.BROKER, "7"), FOLLOWER + "rate", "Broker 7"),
        (T, FOLLOWER + "replicas", "The topic 't'"),
    ],
)
def test_a_plan_with_a_throttle_is_refused_if_one_is_already_set(
    resource: ConfigResource, config: str, subject: str
) -> None:
    with pytest.raises(KafkaError) as refused:
        check_throttle(PLAN, image_with({resource: {config: "1"}}))
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert refused.value.message == f"{subject} already has {config}: remove it, or create the plan without a throttle."


def test_other_configs_are_not() -> None:
    check_throttle(PLAN, image_with({BROKERS: {"log.retention.ms": "1"}, U: {LEADER + "replicas": "*"}}))


def test_a_throttle_that_does_not_fit_into_the_configs_of_a_topic_is_refused() -> None:
    brokers = tuple(range(1001, 1006))
    moves = tuple(StoredMove("t", bytes(16), index, brokers, (1000, *brokers)) for index in range(8000))
    plan = PLAN._replace(moves=moves[:6000])
    check_throttle(plan, image_with({}))
    with pytest.raises(KafkaError) as refused:
        check_throttle(plan._replace(moves=moves), image_with({}))
    assert refused.value.message == (
        "The topic 't' has too many partitions that move for a throttle: use several plans, or no throttle."
    )
