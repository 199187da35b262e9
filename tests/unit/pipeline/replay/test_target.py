"""What a topic does to the records of a replay is known before it is there: from its configs and the broker's."""

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.pipeline.archive.manifest.model import ArchiveState, TopicInfo
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import draft, target
from kbroker.pipeline.replay.draft import World
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.job import Amount
from protocol.errors import ErrorCode
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
STATE = ArchiveState(topics={"a": TopicInfo("", 3, {"message.timestamp.type": "LogAppendTime", "segment.bytes": "9"})})


class Broker:
    """Number 4, which tells its own configs and nobody else's. Stands in for `Brokers` and for a `Connection`."""

    def __init__(self, configs: Mapping[str, str | None], error: ErrorCode = ErrorCode.NONE) -> None:
        self.configs = configs
        self.error = error

    def node(self) -> tuple[int, "Broker"]:
        return 4, self

    def ask(self, request: DescribeConfigsRequest, _: type) -> DescribeConfigsResponse:
        (resource,) = request.resources
        assert (resource.resource_type, resource.resource_name) == (4, "4")
        found = [DescribeConfigsResourceResult(name=n, value=v) for n, v in self.configs.items()]
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=self.error, configs=[one for one in found if one.name in resource.configuration_keys]
                )
            ]
        )


def checked(broker: Broker, configs: Mapping[str, str], age_ms: int) -> list[str]:
    """The warnings for records of this age in a topic that is to be created like the archived one."""
    world: Any = World(None, None, broker, "", lambda _: None)  # type: ignore[arg-type]
    now_ms = draft.time.time_ns() // 1_000_000
    wanted = target.wanted(STATE, ["a"], 1, configs)
    amounts = {Target("x", 0): Amount(1, 1, now_ms - age_ms, now_ms - age_ms)}
    return draft._check_topics(draft._effective(world, {}, {"x": wanted}), amounts)


def test_a_topic_is_created_with_create_time_whatever_the_broker_does():
    for sources in (["a"], ["a", "b"], []):
        assert target.wanted(STATE, sources, 1, {}).configs["message.timestamp.type"] == "CreateTime"
    assert target.wanted(STATE, ["a"], 1, {"x": "y"}) == target.Wanted(
        3, {"message.timestamp.type": "CreateTime", "segment.bytes": "9", "x": "y"}
    )
    assert checked(Broker({"log.message.timestamp.type": "LogAppendTime"}), {}, 0) == []
    with pytest.raises(PipelineError, match="topic x gives records the time of their arrival"):
        checked(Broker({}), {"message.timestamp.type": "LogAppendTime"}, 0)


def test_the_brokers_retention_removes_records_of_a_new_topic():
    broker = Broker({"log.retention.ms": None, "log.retention.hours": "168", "log.cleanup.policy": "delete"})
    assert checked(broker, {}, WEEK_MS - HOUR_MS) == []
    (warning,) = checked(broker, {}, WEEK_MS + HOUR_MS)
    assert warning.startswith(f"topic x removes records that are older than retention.ms={WEEK_MS}, and")
    # what the topic is given overrules the broker
    assert checked(broker, {"retention.ms": "-1"}, WEEK_MS + HOUR_MS) == []
    assert checked(broker, {"cleanup.policy": "compact"}, WEEK_MS + HOUR_MS) == []
    assert checked(Broker({**broker.configs, "log.cleanup.policy": "compact"}), {}, WEEK_MS + HOUR_MS) == []


@pytest.mark.parametrize(
    ("broker", "retention"),
    [
        ({"log.retention.ms": "5", "log.retention.minutes": "1", "log.retention.hours": "1"}, "5"),
        ({"log.retention.minutes": "2", "log.retention.hours": "1"}, "120000"),
        ({"log.retention.hours": "-1"}, "-1"),
        ({}, None),
    ],
)
def test_the_strongest_retention_of_a_broker_acts(broker: dict[str, str], retention: str | None):
    assert target.topic_defaults(broker).get("retention.ms") == retention


def test_the_brokers_bounds_of_timestamps_are_known_before():
    with pytest.raises(PipelineError, match=r"refuses records as old .*before.max.ms=3600000\): nothing was sent"):
        checked(Broker({"log.message.timestamp.before.max.ms": str(HOUR_MS)}), {}, 2 * HOUR_MS)
    bound = Broker({"log.message.timestamp.after.max.ms": str(HOUR_MS)})
    with pytest.raises(PipelineError, match=r"refuses records as far in the future .*after.max.ms=3600000\)"):
        checked(bound, {}, -2 * HOUR_MS)
    assert checked(bound, {"message.timestamp.after.max.ms": str(3 * HOUR_MS)}, -2 * HOUR_MS) == []


def test_a_broker_that_does_not_tell_its_configs_is_named():
    with pytest.raises(PipelineError, match="configs of broker 4: CLUSTER_AUTHORIZATION_FAILED"):
        checked(Broker({}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), {}, 0)
