"""Every config of Apache Kafka 4.3 is known with its type, default, range and mode."""

import json
import re
from pathlib import Path

import pytest

from kbroker.config.config_def import ConfigDef, ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS, TOPIC_CONFIGS
from kbroker.config.values import ConfigError, format_value

# One config a line: resource, name, type, default, range, dynamic mode, sensitive, importance.
KAFKA = [json.loads(line) for line in Path(__file__).parent.with_name("kafka_4_3_configs.jsonl").open()]
TABLES: dict[str, ConfigDef] = {"topic": TOPIC_CONFIGS, "broker": BROKER_CONFIGS, "group": GROUP_CONFIGS}
OWN = {
    "topic": {"flush.before.ack", "kbroker.record.validation"},
    "broker": {"kbroker.log.format", "kbroker.metrics.listener", "kbroker.record.validation"},
}

# kbroker's own defaults, and why.
OTHER_DEFAULTS = {
    "retention.ms": "1209600000",  # two weeks
    "log.retention.hours": "336",
    "node.id": "1",  # Kafka has no default for these
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "broker.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",  # reachable from elsewhere only when asked for
    "log.dir": "kbroker-data",
    "offsets.topic.replication.factor": "1",  # a single broker must do
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def test_the_names_are_kafkas_and_a_few_own():
    for resource, rows in TABLES.items():
        theirs = {config[1] for config in KAFKA if config[0] == resource}
        assert set(rows) == theirs | OWN.get(resource, set())


@pytest.mark.parametrize("config", KAFKA, ids=lambda config: f"{config[0]}-{config[1]}")
def test_a_config_is_what_it_is_in_kafka(config: list[str]):
    resource, name, kind, default, allowed, mode, sensitive, importance = config
    row = TABLES[resource][name]
    assert row.type.name == kind
    assert format_value(row.default) == OTHER_DEFAULTS.get(name, default)
    assert row.sensitive == sensitive
    assert row.importance.value == importance
    assert row.mode.value == mode
    _check_range(row, allowed)


def _check_range(row: ConfigKey, allowed: str) -> None:
    """`allowed` is "[low,...]", "[low,...,high]" or nothing; the bounds are taken, what lies beyond is refused."""
    match = re.fullmatch(r"\[(-?[0-9.]+),\.\.\.(?:,(-?[0-9.]+))?\]", allowed)
    if match is None:
        assert not allowed
        return
    low, high = match.groups()
    row.parse(low)
    with pytest.raises(ConfigError, match=f"for configuration {row.name}: Value must be at least {low}$"):
        row.parse(str(int(low) - 1))
    if high is not None:
        row.parse(high)
        with pytest.raises(ConfigError, match=f"for configuration {row.name}: Value must be no more than {high}$"):
            row.parse(str(int(high) + 1))


ALL_ROWS = [
    row
    for rows in (ALL_TOPIC_CONFIGS, BROKER_CONFIGS, DYNAMIC_ONLY, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS)
    for row in rows.values()
]


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.name)
def test_a_row_is_whole(row: ConfigKey):
    assert row.doc.endswith(".")
    assert "  " not in row.doc
    if row.default is not None:
        assert row.parse(format_value(row.default)) == row.default


@pytest.mark.parametrize("rows", [ALL_TOPIC_CONFIGS, GROUP_CONFIGS], ids=["topic", "group"])
def test_synonyms_are_broker_configs_with_the_same_default(rows: ConfigDef):
    for row in rows.values():
        values = [BROKER_CONFIGS[synonym.name].default for synonym in row.synonyms]
        scaled = [
            value * synonym.factor if isinstance(value, int) and synonym.factor > 1 else value
            for value, synonym in zip(values, row.synonyms, strict=True)
        ]
        inherited = [value for value in scaled if value is not None]
        assert inherited[:1] == ([row.default] if inherited else [])
