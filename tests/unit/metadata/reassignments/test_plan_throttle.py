"""The configs of a plan's throttle: it overwrites no existing ones, and removes exactly those that it has set."""

import pytest

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.image import MetadataDelta, MetadataImage
from kbroker.metadata.reassignments.plan_checks import check_throttle, with_throttle, without_throttle
from kbroker.metadata.reassignments.stored_plan import PlanState, StoredMove, StoredPlan
from protocol.errors import ErrorCode

BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
T, U = ConfigResource(ConfigResourceType.TOPIC, "t"), ConfigResource(ConfigResourceType.TOPIC, "u")
LEADER, FOLLOWER = "leader.replication.throttled.", "follower.replication.throttled."
RATES = {LEADER + "rate": "1000", FOLLOWER + "rate": "1000"}
REPLICAS = {
    LEADER + "replicas": "0:1,0:2,0:3,2:1,2:2",
    FOLLOWER + "replicas": "0:1,0:3,2:1,2:2",
}
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
