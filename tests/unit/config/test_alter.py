"""Decisions of alter.py that the recorded responses of the config APIs (tests/unit/api) do not cover."""

import time

import pytest

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig, TopicConfig
from kbroker.config.alter import AlterConfigOp, OpType, alter_broker, alter_client_metrics, alter_group, alter_topic
from kbroker.config.topic_config import DEFAULTS, check_internal_topic, validate_topic_configs
from kbroker.config.values import format_value

CONFIG = BrokerConfig.load()


def test_the_current_overrides_are_not_modified():
    overrides = {"retention.ms": "5"}
    altered = alter_topic(overrides, [AlterConfigOp("retention.ms", OpType.SET, "6")], CONFIG)
    assert altered == {"retention.ms": "6"}
    assert overrides == {"retention.ms": "5"}


def test_append_starts_from_the_value_in_effect():
    config = CONFIG.with_dynamic({"log.cleanup.policy": "compact"}, {})
    op = AlterConfigOp("cleanup.policy", OpType.APPEND, "delete")
    assert alter_topic({}, [op], config) == {"cleanup.policy": "compact,delete"}
    assert alter_topic({"cleanup.policy": "delete"}, [op], config) == {"cleanup.policy": "delete"}


def test_a_topic_config_that_contradicts_the_brokers_is_rejected():
    config = BrokerConfig.load({"log.cleaner.max.compaction.lag.ms": "10"})
    with pytest.raises(KafkaError, match=r"min.compaction.lag.ms \(20\) > max.compaction.lag.ms \(10\)"):
        alter_topic({}, [AlterConfigOp("min.compaction.lag.ms", OpType.SET, "20")], config)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("overrides", [{}, {"retention.ms": "5"}])
def test_a_topic_cannot_become_a_view(replace: bool, overrides: dict[str, str]) -> None:
    op = AlterConfigOp("kbroker.view.of", OpType.SET, "orders")
    with pytest.raises(KafkaError, match="existing topic cannot become a view; create the view as a new topic"):
        alter_topic(overrides, [op], CONFIG, replace=replace)


@pytest.mark.parametrize("replace", [False, True])
def test_all_configs_of_a_topic_can_be_written_back(replace: bool) -> None:
    """Some tools change one config by setting all of them, with the values of DescribeConfigs."""
    described = {name: text for name, value in DEFAULTS.items() if (text := format_value(value)) is not None}
    ops = [AlterConfigOp(name, OpType.SET, value) for name, value in described.items()]
    altered = alter_topic({"retention.ms": "5"}, ops, CONFIG, replace=replace)
    assert altered.keys() == described.keys() - {"kbroker.view.of", "kbroker.view.filter"}
    assert TopicConfig.of(altered) == TopicConfig.of()
    check_internal_topic("__consumer_offsets", altered)


def test_a_view_keeps_its_source():
    view = {"kbroker.view.of": "orders", "kbroker.view.filter": "paid"}
    for ops, replace in (
        ([AlterConfigOp("kbroker.view.of", OpType.SET, "others")], False),
        ([AlterConfigOp("kbroker.view.of", OpType.DELETE, None)], False),
        ([AlterConfigOp("kbroker.view.of", OpType.SET, "")], False),
        ([AlterConfigOp("kbroker.view.filter", OpType.SET, "open")], True),
    ):
        with pytest.raises(KafkaError, match="a view keeps its source 'orders'; create a new view, or delete this one"):
            alter_topic(view, ops, CONFIG, replace=replace)
    same = [AlterConfigOp("kbroker.view.of", OpType.SET, "orders")]
    assert alter_topic(view, same, CONFIG, replace=True) == {"kbroker.view.of": "orders"}


def test_delayed_delivery_stays_enabled_when_all_configs_are_replaced():
    """AlterConfigs, the API of old clients, names only what is to be set."""
    retention = [AlterConfigOp("retention.ms", OpType.SET, "6")]
    with pytest.raises(KafkaError, match="cannot be disabled"):
        alter_topic({"kbroker.delay.enable": "true"}, retention, CONFIG, replace=True)


def test_dynamic_configs_of_all_brokers_must_be_valid_with_those_of_this_one():
    config = CONFIG.with_dynamic({}, {"log.cleaner.max.compaction.lag.ms": "10"})
    op = AlterConfigOp("log.cleaner.min.compaction.lag.ms", OpType.SET, "20")
    with pytest.raises(KafkaError, match="must be less than or equal to") as raised:
        alter_broker({}, [op], config, cluster_default=True)
    assert raised.value.code.name == "INVALID_REQUEST"
    assert alter_broker({}, [op], CONFIG, cluster_default=True) == {op.name: "20"}


def test_client_metrics_can_be_appended_to():
    first = alter_client_metrics({}, [AlterConfigOp("metrics", OpType.APPEND, "a,b")])
    assert alter_client_metrics(first, [AlterConfigOp("metrics", OpType.SUBTRACT, "a")]) == {"metrics": "b"}


def test_a_groups_session_timeout_must_exceed_its_heartbeat_interval():
    config = BrokerConfig.load(
        {"group.consumer.max.heartbeat.interval.ms": "60000", "group.consumer.max.session.timeout.ms": "60000"}
    )
    op = AlterConfigOp("consumer.heartbeat.interval.ms", OpType.SET, "45000")
    with pytest.raises(KafkaError, match="must be greater than consumer"):
        alter_group({}, [op], config)


def test_internal_segment_bytes_overrides_segment_bytes():
    config = TopicConfig.of({"internal.segment.bytes": "100", "segment.bytes": "2000000"})
    assert config.segment_bytes == 100
    assert config.get("segment.bytes") == 2_000_000


def test_tiered_storage_is_rejected():
    with pytest.raises(KafkaError, match="Tiered Storage functionality is disabled"):
        validate_topic_configs({"remote.storage.enable": "true"})


def test_the_time_of_a_subtraction_grows_with_the_length_of_the_lists():
    """Two lists of 32 KB took seconds when each element of one was compared with all of the other."""

    def time_of(count: int) -> float:
        old = {"metrics": ",".join(f"a{number}" for number in range(count))}
        op = AlterConfigOp("metrics", OpType.SUBTRACT, ",".join(f"b{number}" for number in range(count)))
        start = time.thread_time()
        assert alter_client_metrics(old, [op]) == old
        return time.thread_time() - start

    short = min(time_of(500) for _ in range(5))
    assert min(time_of(5000) for _ in range(3)) < 30 * short
