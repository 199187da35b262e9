"""Configs from environment variables."""

import pytest

from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.sources.static_configs import StaticConfig, config_name, from_environment


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


@pytest.mark.parametrize("name", sorted(BROKER_CONFIGS))
def test_every_broker_config_has_a_variable(name: str):
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
