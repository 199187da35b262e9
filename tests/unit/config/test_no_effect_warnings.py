"""Configs without effect are marked as such, and setting them is reported."""

import re
from pathlib import Path

import pytest

import kbroker
from kbroker.config import group_config
from kbroker.config.broker.broker_config import broker_config_key
from kbroker.config.config_def import ConfigResourceType, NoEffect
from kbroker.config.definitions import security
from kbroker.config.definitions.broker import BROKER_CONFIGS, ZOOKEEPER_KEYS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.config.no_effect_warnings import no_effect_reason, no_effect_warnings
from kbroker.config.queue_configs import RETRY_KEYS

# Configs that kbroker/config itself reads.
READ_IN_CONFIG = {
    "kbroker.archive.locations",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "broker.id",
    "controller.listener.names",
    "cordoned.log.dirs",
    "internal.segment.bytes",
    "kbroker.inter.broker.listener",
    "listener.security.protocol.map",
    "log.dir",
    "max.connection.creation.rate",
    "max.connections",
    "process.roles",
    *(key.name for key in (*security.KEYS, *security.AUTHORIZER_KEYS)),
    *(key.name for key in ZOOKEEPER_KEYS),
    # Consumers read them.
    *(key.name for key in RETRY_KEYS),
}
# Those that the controller reads by name from the metadata, which may be newer than its broker's configuration.
READ_BY_NAME = {
    "kbroker.replica.rebuild.after.ms",
    "kbroker.replica.rebuild.throttled.rate",
    "kbroker.view.filter",
    "kbroker.view.of",
}


def test_configs_that_take_effect_are_read_somewhere():
    """They are read outside kbroker/config, through the attribute of BrokerConfig or TopicConfig."""
    root = Path(kbroker.__file__).parent
    sources = "\n".join(path.read_text() for path in root.rglob("*.py") if "config" not in path.relative_to(root).parts)
    attributes = set(re.findall(r"\.([a-z_]+)\b", sources))
    # Broker configs that are defaults of topic configs are read through these.
    inherited = {synonym.name for key in ALL_TOPIC_CONFIGS.values() for synonym in key.synonyms}
    # So are those of group configs; their limits are read when a group config is set.
    read = [key for key in GROUP_CONFIGS.values() if key.name.replace(".", "_") in attributes]
    inherited |= {synonym.name for key in read for synonym in key.synonyms}
    inherited |= {name for key in read for name in group_config.limits(key.name)}
    names = (
        {key.name for key in (*ALL_TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()) if key.no_effect is None}
        - READ_IN_CONFIG
        - READ_BY_NAME
    )
    assert [name for name in sorted(names - inherited) if name.replace(".", "_") not in attributes] == []


@pytest.mark.parametrize("key", ALL_TOPIC_CONFIGS.values(), ids=lambda key: key.name)
def test_the_broker_configs_behind_a_topic_config_take_effect_if_it_does(key):
    if key.no_effect is None:
        assert [BROKER_CONFIGS[synonym.name].no_effect for synonym in key.synonyms] == [None] * len(key.synonyms)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("listener.name.x.ssl.keystore.location", None),
        ("sasl.login.class", NoEffect.NO_PROTECTION),
        ("listener.name.x.ssl.provider", NoEffect.NO_SECURITY),
        ("listener.name.x.socket.send.buffer.bytes", "it applies to all listeners only"),
        ("listener.name.x.max.connections", None),
        ("socket.send.buffer.bytes", None),
        ("controller.quorum.voters", "kbroker has no metadata quorum"),
        ("client.quota.callback.class", "kbroker does not load Java classes"),
        ("remote.log.reader.threads", "kbroker has no tiered storage"),
    ],
)
def test_the_reason_why_a_config_has_no_effect(name: str, reason: str | None):
    assert no_effect_reason(broker_config_key(name)) == reason


def test_configs_without_effect_are_reported_unless_they_are_set_to_their_default():
    configs = {
        "num.network.threads": "9",
        "background.threads": "10",
        "num.partitions": "3",
        "sasl.oauthbearer.scope": "secret",
        "listener.name.x.max.connections": "5",
        "listener.name.x.max.connections.per.ip": "5",
    }
    assert no_effect_warnings(ConfigResourceType.BROKER, configs) == [
        "num.network.threads=9 is accepted, but has no effect: "
        "one event loop serves all requests, without a pool of threads",
        f"sasl.oauthbearer.scope=secret is accepted, but has no effect: {NoEffect.NO_SECURITY}",
        "listener.name.x.max.connections.per.ip=5 is accepted, but has no effect: it applies to all listeners only",
    ]
    topic = ConfigResourceType.TOPIC
    assert no_effect_warnings(topic, {"retention.ms": "5", "preallocate": "false"}) == []
    assert no_effect_warnings(topic, {"cleanup.policy": "compact,delete", "delete.retention.ms": "5"}) == []
