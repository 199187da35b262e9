"""Which source of a config is the stronger, and the environment as one."""

import pytest

from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.sources.static_configs import StaticConfig, config_name, from_environment, merge_sources


def test_an_environment_variable_is_a_config():
    assert from_environment({"KBROKER_LOG_RETENTION_MS": "5", "HOME": "/root", "KAFKA_NODE_ID": "3"}) == {
        "log.retention.ms": StaticConfig("5", "KBROKER_LOG_RETENTION_MS")
    }


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KBROKER_NODE_ID", "node.id"),
        ("KBROKER_LISTENER_NAME_IN__SIDE_MAX_CONNECTIONS", "listener.name.in_side.max.connections"),
        ("KBROKER_LISTENER_NAME_A___B_SASL_JAAS_CONFIG", "listener.name.a-b.sasl.jaas.config"),
        ("KBROKER_KBROKER_RECORD_VALIDATION", "kbroker.record.validation"),
        ("KBROKER_RECORD_VALIDATION", "kbroker.record.validation"),
        ("KBROKER_NO_SUCH", "no.such"),
    ],
)
def test_underscores_stand_for_dots(variable: str, name: str):
    assert config_name(variable) == name


@pytest.mark.parametrize("name", sorted(BROKER_CONFIGS))
def test_every_broker_config_can_be_set_by_a_variable(name: str):
    variable = "KBROKER_" + name.replace("-", "___").replace("_", "__").replace(".", "_").upper()
    assert list(from_environment({variable: "x"})) == [name]


@pytest.mark.parametrize(
    "variable",
    [
        "KBROKER_BOOTSTRAP",
        "KBROKER_DATA",
        "KBROKER_PYTHON",
        "KBROKER_SPARK_JARS",
        "KBROKER_COMPAT_BOOTSTRAP",
        "KBROKER_COMPAT_COMMAND",
        "KBROKER_FUZZ_SEED",
        # what Kubernetes tells every container about a service of that name
        "KBROKER_SERVICE_HOST",
        "KBROKER_SERVICE_PORT",
        "KBROKER_SERVICE_PORT_CLIENTS",
        "KBROKER_PORT",
        "KBROKER_PORT_9092_TCP",
        "KBROKER_PORT_9092_TCP_ADDR",
    ],
)
def test_variables_of_others_are_left_alone(variable: str):
    assert from_environment({variable: "x"}) == {}


def test_the_last_layer_is_the_strongest():
    assert merge_sources({"a": StaticConfig("1", "f"), "b": StaticConfig("2", "f")}, {"b": StaticConfig("3", "g")}) == {
        "a": StaticConfig("1", "f"),
        "b": StaticConfig("3", "g"),
    }


@pytest.mark.parametrize(
    ("weak", "strong"), [("log.dir", "log.dirs"), ("log.dirs", "log.dir"), ("broker.id", "node.id")]
)
def test_a_stronger_name_for_the_same_thing_replaces_the_other(weak: str, strong: str):
    assert merge_sources({weak: StaticConfig("1", "f")}, {strong: StaticConfig("2", "g")}) == {
        strong: StaticConfig("2", "g")
    }
    both = {weak: StaticConfig("1", "f"), strong: StaticConfig("2", "f")}
    assert merge_sources(both) == both
