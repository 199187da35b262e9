"""Every config of Apache Kafka 4.4 is defined with its type, default, range and update mode."""

import json
import re
from pathlib import Path

import pytest

from kbroker.config.config_def import ConfigDef, ConfigKey
from kbroker.config.definitions.broker import BROKER_CONFIGS, DYNAMIC_ONLY, ZOOKEEPER_KEYS
from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
from kbroker.config.definitions.group import GROUP_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS, TOPIC_CONFIGS
from kbroker.config.queue_configs import RETRY_KEYS
from kbroker.config.values import ConfigError, format_value

# One config per line: resource, name, type, default, range, update mode, sensitive, importance.
KAFKA = [json.loads(line) for line in Path(__file__).parent.with_name("kafka_4_4_configs.jsonl").open()]
DEFINITIONS: dict[str, ConfigDef] = {"topic": TOPIC_CONFIGS, "broker": BROKER_CONFIGS, "group": GROUP_CONFIGS}
OWN = {
    "group": {"kbroker.share.retry.delays.ms"},
    "topic": {
        "flush.before.ack",
        "kbroker.archive.before.delete",
        "kbroker.archive.earliest",
        "kbroker.archive.table",
        "kbroker.dedup.max.keys",
        "kbroker.dedup.window.ms",
        "kbroker.delay.enable",
        "kbroker.delay.levels",
        "kbroker.delay.max.ms",
        "kbroker.record.validation",
        "kbroker.ttl.enable",
        "kbroker.ttl.ms",
        "kbroker.view.filter",
        "kbroker.view.of",
        "replica.lag.max.messages",
    }
    | {key.name for key in RETRY_KEYS},
    "broker": {
        "kbroker.archive.locations",
        "kbroker.audit.log",
        "kbroker.audit.log.files",
        "kbroker.audit.log.max.bytes",
        "allow.everyone.if.no.acl.found",
        "super.users",
        "kbroker.inter.broker.listener",
        "kbroker.log.format",
        "kbroker.metrics.listener",
        "kbroker.metrics.otlp",
        "kbroker.record.validation",
        "kbroker.replica.rebuild.after.ms",
        "kbroker.replica.rebuild.throttled.rate",
        "kbroker.retired.partition.idle.ms",
    }
    | {key.name for key in ZOOKEEPER_KEYS},
}

# Defaults that differ from Kafka's.
OTHER_DEFAULTS = {
    "retention.ms": "1209600000",  # two weeks
    "log.retention.hours": "336",
    "node.id": "1",  # Kafka has no default for these
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "broker.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092",  # the loopback interface only
    "log.dir": "kbroker-data",
    "offsets.topic.replication.factor": "1",  # for a single broker
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def test_the_configs_are_kafkas_and_kbrokers_own():
    for resource, definition in DEFINITIONS.items():
        kafka_names = {config[1] for config in KAFKA if config[0] == resource}
        assert set(definition) == kafka_names | OWN.get(resource, set())


@pytest.mark.parametrize("resource", DEFINITIONS)
def test_configs_are_defined_as_in_kafka(resource: str):
    for own, name, config_type, default, valid_range, update_mode, sensitive, importance in KAFKA:
        if own == resource:
            key = DEFINITIONS[resource][name]
            assert key.type.name == config_type, name
            assert format_value(key.default) == OTHER_DEFAULTS.get(name, default), name
            assert key.is_sensitive == sensitive, name
            assert key.importance.value == importance, name
            assert key.update_mode.value == update_mode, name
            _check_range(key, valid_range)


def _check_range(key: ConfigKey, valid_range: str) -> None:
    """Check that the bounds of `valid_range` are valid, and that values beyond them are not.

    It is "[low,...]", "[low,...,high]" or "".
    """
    match = re.fullmatch(r"\[(-?[0-9.]+),\.\.\.(?:,(-?[0-9.]+))?\]", valid_range)
    if match is None:
        assert not valid_range
        return
    low, high = match.groups()
    key.parse(low)
    with pytest.raises(ConfigError, match=f"for configuration {key.name}: Value must be at least {low}$"):
        key.parse(str(int(low) - 1))
    if high is not None:
        key.parse(high)
        with pytest.raises(ConfigError, match=f"for configuration {key.name}: Value must be no more than {high}$"):
            key.parse(str(int(high) + 1))


ALL_KEYS = [
    key
    for definition in (ALL_TOPIC_CONFIGS, BROKER_CONFIGS, DYNAMIC_ONLY, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS)
    for key in definition.values()
]


def test_configs_have_documentation_and_a_valid_default():
    for key in ALL_KEYS:
        assert key.documentation.endswith("."), key.name
        assert "  " not in key.documentation, key.name
        assert key.default is None or key.parse(format_value(key.default)) == key.default, key.name


@pytest.mark.parametrize("definition", [ALL_TOPIC_CONFIGS, GROUP_CONFIGS], ids=["topic", "group"])
def test_synonyms_are_broker_configs_with_the_same_default(definition: ConfigDef):
    for key in definition.values():
        if key.name == "streams.assignor.name":
            continue  # the first of a list
        values = [BROKER_CONFIGS[synonym.name].default for synonym in key.synonyms]
        scaled = [
            value * synonym.factor if isinstance(value, int) and synonym.factor > 1 else value
            for value, synonym in zip(values, key.synonyms, strict=True)
        ]
        inherited = [value for value in scaled if value is not None]
        assert inherited[:1] == ([key.default] if inherited else [])


def test_mirror_maker_excludes_what_only_kbroker_has():
    page = (Path(__file__).parents[4] / "docs" / "migration.md").read_text()
    [value] = re.findall(r"^config\.properties\.exclude = ((?:.*\\\n)*.*)$", page, re.MULTILINE)
    patterns = [re.compile(pattern.strip(" \\\n")) for pattern in value.split(",")]
    assert [name for name in sorted(OWN["topic"]) if not any(pattern.fullmatch(name) for pattern in patterns)] == []
