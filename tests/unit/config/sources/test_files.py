"""Config files of both formats, and configs that Kafka 4.0 removed."""

import pytest

from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.sources.files import drop_removed_configs, parse_config_file

STOCK = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
log.dirs=/tmp/kraft-combined-logs
log.retention.hours=168
"""


def texts(path: str, content: str) -> dict[str, str]:
    return {name: config.text for name, config in parse_config_file(path, content.encode()).items()}


@pytest.mark.parametrize("ending", [".conf", "", ".properties"])
def test_a_file_that_is_not_valid_toml_is_parsed_as_properties(ending: str):
    assert texts("f" + ending, "listeners=PLAINTEXT://:1,X://:2\n") == {"listeners": "PLAINTEXT://:1,X://:2"}


def test_a_file_with_another_ending_is_parsed_as_toml_if_it_is_valid():
    assert texts("f.conf", '[log]\ndirs = ["a", "b"]\n') == {"log.dirs": "a,b"}
    with pytest.raises(ConfigError, match=r"f\.toml is not valid TOML: .*line 1"):
        parse_config_file("f.toml", b"listeners=PLAINTEXT://:1")


def test_kafkas_server_properties_make_a_broker():
    config = BrokerConfig.load(texts("server.properties", STOCK))
    assert [str(endpoint) for endpoint in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(endpoint) for endpoint in config.advertised_listeners] == ["PLAINTEXT://localhost:9092"]
    assert config.log_dirs == ("/tmp/kraft-combined-logs",)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"process.roles": "controller", "listeners": "PLAINTEXT://a:1"}, "^process.roles must contain broker$"),
        ({"listeners": "CONTROLLER://a:1"}, "^listeners must contain a listener for clients"),
        (
            {"listeners": "X://a:1", "controller.listener.names": "x"},
            "^listeners must contain a listener for clients",
        ),
    ],
)
def test_a_configuration_of_a_controller_only_is_rejected(configs: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.load(configs)


def test_configs_that_kafka_4_removed_are_ignored_with_a_warning():
    configs = parse_config_file("s.properties", b"zookeeper.clientCnxnSocket=x\nport=9092\nnode.id=1\nnope=1\n")
    kept, warnings = drop_removed_configs(configs)
    assert list(kept) == ["node.id", "nope"]
    assert warnings == [
        "zookeeper.clientCnxnSocket (s.properties:1) was removed in Kafka 4.0 and is ignored",
        "port (s.properties:2) was removed in Kafka 4.0 and is ignored",
    ]
