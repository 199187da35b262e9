"""Static configs: environment variables, and the precedence of sources."""

import pytest

from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.sources.static_configs import StaticConfig, config_name, from_environment, merge_sources


def test_the_last_source_takes_precedence():
    assert merge_sources({"a": StaticConfig("1", "f"), "b": StaticConfig("2", "f")}, {"b": StaticConfig("3", "g")}) == {
        "a": StaticConfig("1", "f"),
        "b": StaticConfig("3", "g"),
    }


@pytest.mark.parametrize(
    ("name", "alias"), [("log.dir", "log.dirs"), ("log.dirs", "log.dir"), ("broker.id", "node.id")]
)
def test_an_alias_in_a_later_source_replaces_the_other_name(name: str, alias: str):
    assert merge_sources({name: StaticConfig("1", "f")}, {alias: StaticConfig("2", "g")}) == {
        alias: StaticConfig("2", "g")
    }
    both = {name: StaticConfig("1", "f"), alias: StaticConfig("2", "f")}
    assert merge_sources(both) == both


def test_environment_variables_set_configs():
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


def test_every_broker_config_has_a_variable():
    for name in BROKER_CONFIGS:
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
        "KBROKER_TEST_THOROUGH",
        # set by Kubernetes in every container for a service with the name kbroker
        "KBROKER_SERVICE_HOST",
        "KBROKER_SERVICE_PORT",
        "KBROKER_SERVICE_PORT_CLIENTS",
        "KBROKER_PORT",
        "KBROKER_PORT_9092_TCP",
        "KBROKER_PORT_9092_TCP_ADDR",
    ],
)
def test_variables_of_other_programs_are_ignored(variable: str):
    assert from_environment({variable: "x"}) == {}
