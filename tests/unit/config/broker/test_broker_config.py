"""BrokerConfig: precedence of the sources, typed attributes, checks of configs against each other."""

from dataclasses import asdict
from typing import get_type_hints

import pytest

from kbroker.config import BrokerConfig, ConfigError, Endpoint, TopicConfig
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.topic import TOPIC_CONFIGS
from kbroker.config.values import ConfigType

PYTHON_TYPES = {
    ConfigType.BOOLEAN: bool,
    ConfigType.SHORT: int,
    ConfigType.INT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: tuple[str, ...],
}


def test_the_defaults_are_a_broker_on_the_loopback_interface():
    config = BrokerConfig.load()
    assert config.listeners == config.advertised_listeners == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)
    assert config.log_dirs == ("kbroker-data",)
    assert (config.node_id, config.get("broker.id")) == (1, 1)
    assert config.offsets_topic_replication_factor == 1
    assert TopicConfig.of({}, config.topic_defaults) == TopicConfig.of()


@pytest.mark.parametrize(
    ("config_class", "definition"),
    [(TopicConfig, TOPIC_CONFIGS), (BrokerConfig, BROKER_CONFIGS)],
    ids=["topic", "broker"],
)
def test_attributes_have_the_types_of_their_configs(config_class: type, definition: dict):
    others = {"values", "static_configs", "dynamic_default_configs", "dynamic_broker_configs", "topic_defaults"}
    others |= {
        "listeners",
        "advertised_listeners",
        "inter_broker_listener_name",
        "throttled_leaders",
        "throttled_followers",
        "group_defaults",
        "security",
        "authorizer",
        "known_group_configs",
    }
    for attribute, hint in get_type_hints(config_class).items():
        if attribute not in others:
            key = definition[attribute.replace("_", ".")]
            expected = PYTHON_TYPES.get(key.type, str)
            optional = key.default is None and attribute != "log_dirs"
            assert hint == (expected | None if optional else expected), attribute


def test_dynamic_configs_take_precedence_over_static_ones():
    config = BrokerConfig.load({"log.segment.bytes": "2000000"})
    assert config.get("log.segment.bytes") == 2_000_000
    config = config.with_dynamic({"log.segment.bytes": "3000000"}, {})
    assert config.topic_defaults.values["segment.bytes"] == 3_000_000
    config = config.with_dynamic({"log.segment.bytes": "3000000"}, {"log.segment.bytes": "4000000"})
    assert TopicConfig.of({}, config.topic_defaults).segment_bytes == 4_000_000
    assert TopicConfig.of({"segment.bytes": "5000000"}, config.topic_defaults).segment_bytes == 5_000_000
    assert config.with_dynamic({}, {}).get("log.segment.bytes") == 2_000_000


@pytest.mark.parametrize(
    ("configs", "retention_ms"),
    [
        ({}, 14 * 24 * 3_600_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_topics_inherit_broker_configs_of_other_units(configs: dict[str, str], retention_ms: int):
    config = BrokerConfig.load(configs)
    assert TopicConfig.of({}, config.topic_defaults).retention_ms == retention_ms


def test_node_id_and_broker_id_are_the_same_config():
    for name in ("node.id", "broker.id"):
        config = BrokerConfig.load({name: "7"})
        assert (config.node_id, config.get("broker.id")) == (7, 7)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"nope": "1"}, "Unknown broker config name: nope"),
        ({"num.partition": "1"}, "Unknown broker config name: num.partition (did you mean num.partitions?)"),
        ({"num.partitions": "x"}, "Invalid value x for configuration num.partitions: Not a number of type INT"),
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        (
            {"node.id": "1", "broker.id": "2"},
            "`node.id` and `broker.id` must be set to the same value. `broker.id` is deprecated, please use `node.id` "
            "instead.",
        ),
        ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
        ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
        (
            {"queued.max.request.bytes": "5"},
            "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
        ),
        (
            {"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "2000000"},
            "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        ({"cordoned.log.dirs": "*,a"}, "When cordoned.log.dirs is set to *, it must not contain other values"),
        (
            {"replica.fetch.wait.max.ms": "40000"},
            "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary "
            "socket timeouts",
        ),
        (
            {"group.consumer.session.timeout.ms": "100000"},
            "group.consumer.session.timeout.ms must be less than or equal to group.consumer.max.session.timeout.ms",
        ),
        (
            {"group.share.session.timeout.ms": "4000", "group.share.min.session.timeout.ms": "3000"},
            "group.share.heartbeat.interval.ms must be less than group.share.session.timeout.ms",
        ),
        (
            {"log.cleaner.min.compaction.lag.ms": "2", "log.cleaner.max.compaction.lag.ms": "1"},
            "log.cleaner.min.compaction.lag.ms must be less than or equal to log.cleaner.max.compaction.lag.ms",
        ),
    ],
)
def test_invalid_configs_are_rejected(configs: dict[str, str], message: str):
    with pytest.raises(ConfigError) as raised:
        BrokerConfig.load(configs)
    assert str(raised.value) == message


def test_a_config_can_be_set_for_one_listener():
    config = BrokerConfig.load(
        {"listener.name.plaintext.max.connections": "5", "listener.name.x.plain.sasl.login.read.timeout.ms": "5"}
    )
    assert config.get("listener.name.plaintext.max.connections") == 5
    with pytest.raises(ConfigError, match="Not a number"):
        BrokerConfig.load({"listener.name.plaintext.max.connections": "many"})


def test_stored_configs_that_are_no_longer_valid_are_ignored():
    config = BrokerConfig.load({"log.cleaner.max.compaction.lag.ms": "10"})
    stored = {"log.cleaner.min.compaction.lag.ms": "20", "log.segment.bytes": "3000000", "gone": "1"}
    config, errors = config.with_stored_dynamic(stored, {"log.segment.bytes": "4000000"})
    assert config.dynamic_default_configs == {"log.segment.bytes": "3000000"}
    assert config.dynamic_broker_configs == {"log.segment.bytes": "4000000"}
    assert [line.partition(" is ignored")[0] for line in errors] == [
        "The dynamic config log.cleaner.min.compaction.lag.ms",
        "The dynamic config gone",
    ]
    again, errors = config.with_stored_dynamic(config.dynamic_default_configs, config.dynamic_broker_configs)
    assert (asdict(again), errors) == (asdict(config), [])
