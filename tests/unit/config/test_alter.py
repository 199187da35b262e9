"""Decisions about overrides that the story of the config APIs (tests/unit/api) does not tell."""

import re
from pathlib import Path

import pytest

import kbroker
from kbroker.common import KafkaError
from kbroker.config import BrokerConfig, TopicConfig
from kbroker.config.acting import (
    ACTING_BROKER_CONFIGS,
    ACTING_TOPIC_CONFIGS,
    without_effect,
)
from kbroker.config.alter import AlterConfigOp, OpType, alter_broker, alter_client_metrics, alter_group, alter_topic
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.topic_config import validate_topic_configs

CONFIG = BrokerConfig.load()


def test_the_current_overrides_are_left_alone():
    current = {"retention.ms": "5"}
    assert alter_topic(current, [AlterConfigOp("retention.ms", OpType.SET, "6")], CONFIG) == {"retention.ms": "6"}
    assert current == {"retention.ms": "5"}


def test_appending_begins_with_what_is_in_effect():
    config = CONFIG.with_dynamic({"log.cleanup.policy": "compact"}, {})
    change = AlterConfigOp("cleanup.policy", OpType.APPEND, "delete")
    assert alter_topic({}, [change], config) == {"cleanup.policy": "compact,delete"}
    assert alter_topic({"cleanup.policy": "delete"}, [change], config) == {"cleanup.policy": "delete"}


def test_a_value_in_conflict_with_the_brokers_is_refused():
    config = BrokerConfig.load({"log.cleaner.max.compaction.lag.ms": "10"})
    with pytest.raises(KafkaError, match=r"min.compaction.lag.ms \(20\) > max.compaction.lag.ms \(10\)"):
        alter_topic({}, [AlterConfigOp("min.compaction.lag.ms", OpType.SET, "20")], config)


def test_dynamic_configs_of_all_brokers_must_fit_this_one():
    config = CONFIG.with_dynamic({}, {"log.cleaner.max.compaction.lag.ms": "10"})
    change = AlterConfigOp("log.cleaner.min.compaction.lag.ms", OpType.SET, "20")
    with pytest.raises(KafkaError, match="must be less than or equal to") as refusal:
        alter_broker({}, [change], config, every=True)
    assert refusal.value.code.name == "INVALID_REQUEST"
    assert alter_broker({}, [change], CONFIG, every=True) == {change.name: "20"}


def test_metrics_may_be_appended_to():
    first = alter_client_metrics({}, [AlterConfigOp("metrics", OpType.APPEND, "a,b")])
    assert alter_client_metrics(first, [AlterConfigOp("metrics", OpType.SUBTRACT, "a")]) == {"metrics": "b"}


def test_a_groups_session_outlasts_its_heartbeats():
    config = BrokerConfig.load(
        {"group.consumer.max.heartbeat.interval.ms": "60000", "group.consumer.max.session.timeout.ms": "60000"}
    )
    change = AlterConfigOp("consumer.heartbeat.interval.ms", OpType.SET, "45000")
    with pytest.raises(KafkaError, match="must be greater than consumer"):
        alter_group({}, [change], config)


def test_small_segments_for_tests():
    config = TopicConfig.of({"internal.segment.bytes": "100", "segment.bytes": "2000000"})
    assert config.segment_bytes == 100
    assert config.get("segment.bytes") == 2_000_000


def test_tiered_storage_is_refused():
    with pytest.raises(KafkaError, match="Tiered Storage functionality is disabled"):
        validate_topic_configs({"remote.storage.enable": "true"})


def test_acting_configs_exist():
    assert set(ALL_TOPIC_CONFIGS) > ACTING_TOPIC_CONFIGS
    assert set(BROKER_CONFIGS) > ACTING_BROKER_CONFIGS


def test_acting_configs_are_read_somewhere():
    """By their attribute, outside of the configuration itself; these few are read there."""
    within = {
        "cordoned.log.dirs",
        "controller.listener.names",
        "process.roles",
        "max.connections",
        "max.connection.creation.rate",
    }
    within |= {"broker.id", "internal.segment.bytes", "listener.security.protocol.map", "log.dir"}
    root = Path(kbroker.__file__).parent
    sources = "\n".join(path.read_text() for path in root.rglob("*.py") if "config" not in path.relative_to(root).parts)
    read = set(re.findall(r"\.([a-z_]+)\b", sources))
    # What stands behind an acting topic config is read through it.
    inherited = {synonym.name for row in ALL_TOPIC_CONFIGS.values() for synonym in row.synonyms}
    names = (ACTING_TOPIC_CONFIGS | ACTING_BROKER_CONFIGS) - inherited - within
    assert [name for name in sorted(names) if name.replace(".", "_") not in read] == []


def test_what_has_no_effect_is_said_unless_it_is_the_default():
    given = {
        "num.network.threads": "9",
        "background.threads": "10",
        "num.partitions": "3",
        "ssl.keystore.password": "secret",
        "listener.name.x.max.connections": "5",
        "listener.name.x.max.connections.per.ip": "5",
    }
    assert without_effect(4, given) == [
        "num.network.threads=9 is accepted, but has no effect: one loop serves all requests, without threads for it",
        "ssl.keystore.password is accepted, but has no effect: "
        "there is no TLS, SASL, authorization or delegation token yet",
        "listener.name.x.max.connections.per.ip=5 is accepted, but has no effect: it acts for all listeners only",
    ]
    assert without_effect(2, {"retention.ms": "5", "preallocate": "false"}) == []
    assert without_effect(2, {"cleanup.policy": "compact,delete", "delete.retention.ms": "5"}) == []
