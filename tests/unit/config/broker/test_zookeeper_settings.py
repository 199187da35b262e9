"""The configs of the connection to ZooKeeper."""

import pytest

from kbroker.config import BrokerConfig
from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings, parse_connect, zookeeper_settings
from kbroker.config.values import ConfigError


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zk", ("zk:2181",), ""),
        ("a:1,b:65535", ("a:1", "b:65535"), ""),
        ("a:1, b:2/kafka/one/", ("a:1", "b:2"), "/kafka/one"),
        ("[::1]:2181/x", ("[::1]:2181",), "/x"),
        ("[::1],zk", ("[::1]:2181", "zk:2181"), ""),
    ],
)
def test_hosts_and_chroot(text: str, hosts: tuple[str, ...], chroot: str) -> None:
    assert parse_connect(text) == (hosts, chroot)


@pytest.mark.parametrize(
    "text",
    ["a:b", "a:0", "a:70000", ":1", "a,,b", "/x", "a//x", "a/x/../y", "a/zookeeper", "u@a", "a b", "[::1]:x", "::1"],
)
def test_an_invalid_connect_string_is_refused_at_start(text: str) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.connect"):
        BrokerConfig.load({"zookeeper.connect": text})


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"kbroker.zookeeper.digest": "nobody"}, "kbroker.zookeeper.digest must be USER:PASSWORD"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl requires kbroker.zookeeper.digest"),
        ({"zookeeper.ssl.keystore.type": "JKS"}, "zookeeper.ssl.keystore.type"),
    ],
)
def test_configs_that_contradict_each_other_are_refused(configs: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.load({"zookeeper.connect": "zk", **configs})


def test_the_password_is_not_in_an_error() -> None:
    with pytest.raises(ConfigError) as failure:
        BrokerConfig.load({"zookeeper.connect": "zk", "kbroker.zookeeper.digest": "secret"})
    assert "secret" not in str(failure.value)


def test_the_defaults_are_those_of_kafka_3() -> None:
    settings = zookeeper_settings(BrokerConfig.load({"zookeeper.connect": "zk:2181/kafka"}).values)
    assert settings == ZooKeeperSettings(("zk:2181",), "/kafka", 18.0, 18.0)
    assert settings.address == "zk:2181/kafka"
