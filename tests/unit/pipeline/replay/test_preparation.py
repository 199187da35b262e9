"""Target topics: the configs of new ones, and what topics and brokers do to old records."""

from collections.abc import Mapping
from typing import Any

import pytest

from kbroker.archive.topic_state import TopicInfo
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay import preparation
from kbroker.pipeline.replay.preparation import (
    ReplayTarget,
    as_topic_configs,
    max_batch_bytes,
    new_topic,
    retention_warnings,
    timestamp_errors,
)
from kbroker.pipeline.replay.selection import RecordTotals
from protocol.errors import ErrorCode
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
ARCHIVED = {"a": TopicInfo("", 3, {"message.timestamp.type": "LogAppendTime", "segment.bytes": "9"})}


class FakeBroker:
    """Broker 4, which describes its own configs only. Stands in for a ClusterClient."""

    def __init__(self, configs: Mapping[str, str | None], error: ErrorCode = ErrorCode.NONE) -> None:
        self.configs = configs
        self.error = error

    def any_node(self) -> tuple[int, "FakeBroker"]:
        return 4, self

    def request(self, request: DescribeConfigsRequest, _: type, broker: int | None) -> DescribeConfigsResponse:
        assert broker == 4
        (resource,) = request.resources
        assert (resource.resource_type, resource.resource_name) == (4, "4")
        names = resource.configuration_keys or []
        configs = [DescribeConfigsResourceResult(name=n, value=v) for n, v in self.configs.items() if n in names]
        return DescribeConfigsResponse(results=[DescribeConfigsResult(error_code=self.error, configs=configs)])


def check(broker: Any, configs: Mapping[str, str], age_ms: int) -> list[str]:
    """Return the warnings for records of this age in a topic that is created like the archived one."""
    now_ms = preparation.time.time_ns() // 1_000_000
    new = {"x": new_topic(ARCHIVED, ["a"], 1, configs)}
    totals = {TopicPartition("x", 0): RecordTotals(1, now_ms - age_ms, now_ms - age_ms)}
    return preparation._check_topic_configs(preparation._effective_configs(broker, new), totals)


def test_timestamps_that_a_topic_would_reject_or_replace():
    now = 10_000_000
    assert timestamp_errors("t", {}, 0, now, now) == []
    (error,) = timestamp_errors("t", {"message.timestamp.type": "LogAppendTime"}, 0, 0, now)
    assert "replaces timestamps by the time of the append" in error
    bounds = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"}
    assert len(timestamp_errors("t", bounds, now - 1001, now + 1001, now)) == 2
    assert timestamp_errors("t", bounds, now - 1000, now + 1000, now) == []


def test_retention_that_would_delete_old_records():
    now = 10_000_000
    assert retention_warnings("t", {"retention.ms": "1000"}, now - 1001, now)
    assert not retention_warnings("t", {"retention.ms": "-1"}, 0, now)
    assert not retention_warnings("t", {"retention.ms": "1000", "cleanup.policy": "compact"}, 0, now)


def test_a_new_topic_has_the_archived_partitions_and_configs():
    configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": "5"}
    archived = {"t": TopicInfo("", 4, configs), "u": TopicInfo("", 6, {"segment.ms": "9"})}
    created = new_topic(archived, ["t"], 2, {"retention.ms": "-1"})
    assert created == ReplayTarget(4, {"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    assert new_topic(archived, ["t", "u"], 9, {}) == ReplayTarget(9, {"message.timestamp.type": "CreateTime"})


def test_batches_fit_every_topic():
    assert max_batch_bytes([{"max.message.bytes": "1000"}, {}], 5000, 100) == 900
    assert max_batch_bytes([{}], 5000, 100) == 5000


def test_a_topic_is_created_with_create_time_whatever_the_brokers_default():
    for sources in (["a"], ["a", "b"], []):
        assert new_topic(ARCHIVED, sources, 1, {}).configs["message.timestamp.type"] == "CreateTime"
    expected = ReplayTarget(3, {"message.timestamp.type": "CreateTime", "segment.bytes": "9", "x": "y"})
    assert new_topic(ARCHIVED, ["a"], 1, {"x": "y"}) == expected
    assert check(FakeBroker({"log.message.timestamp.type": "LogAppendTime"}), {}, 0) == []
    with pytest.raises(PipelineError, match="topic x replaces timestamps by the time of the append"):
        check(FakeBroker({}), {"message.timestamp.type": "LogAppendTime"}, 0)


def test_the_brokers_retention_deletes_records_of_a_new_topic():
    broker = FakeBroker({"log.retention.ms": None, "log.retention.hours": "168", "log.cleanup.policy": "delete"})
    assert check(broker, {}, WEEK_MS - HOUR_MS) == []
    (warning,) = check(broker, {}, WEEK_MS + HOUR_MS)
    assert warning.startswith(f"topic x deletes records that are older than retention.ms={WEEK_MS}, and")
    # the topic's own configs override the broker's
    assert check(broker, {"retention.ms": "-1"}, WEEK_MS + HOUR_MS) == []
    assert check(broker, {"cleanup.policy": "compact"}, WEEK_MS + HOUR_MS) == []
    assert check(FakeBroker({**broker.configs, "log.cleanup.policy": "compact"}), {}, WEEK_MS + HOUR_MS) == []


@pytest.mark.parametrize(
    ("broker_configs", "retention_ms"),
    [
        ({"log.retention.ms": "5", "log.retention.minutes": "1", "log.retention.hours": "1"}, "5"),
        ({"log.retention.minutes": "2", "log.retention.hours": "1"}, "120000"),
        ({"log.retention.hours": "-1"}, "-1"),
        ({}, None),
    ],
)
def test_the_brokers_retention_in_the_smallest_unit_applies(broker_configs: dict[str, str], retention_ms: str | None):
    assert as_topic_configs(broker_configs).get("retention.ms") == retention_ms


def test_the_brokers_timestamp_bounds_apply_to_a_new_topic():
    with pytest.raises(PipelineError, match=r"rejects records as old .*before.max.ms=3600000\): nothing was sent"):
        check(FakeBroker({"log.message.timestamp.before.max.ms": str(HOUR_MS)}), {}, 2 * HOUR_MS)
    broker = FakeBroker({"log.message.timestamp.after.max.ms": str(HOUR_MS)})
    with pytest.raises(PipelineError, match=r"rejects records as far in the future .*after.max.ms=3600000\)"):
        check(broker, {}, -2 * HOUR_MS)
    assert check(broker, {"message.timestamp.after.max.ms": str(3 * HOUR_MS)}, -2 * HOUR_MS) == []


def test_an_error_of_describe_configs_names_the_broker():
    with pytest.raises(PipelineError, match="configs of broker 4: CLUSTER_AUTHORIZATION_FAILED"):
        check(FakeBroker({}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), {}, 0)
