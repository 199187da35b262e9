"""Replays recorded requests of the config APIs and compares the responses with those of Apache Kafka 4.4.0.

kafka_4_4_config_responses.jsonl has one step per line, in order, with the response of a single node that was started
with RECORDED_PROPERTIES. Configs that depend on its machine are omitted. `expected` has the intended differences. To
record them again:

    python -m tests.unit.support.config_recording HOST:PORT
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from kbroker.config.config_def import ConfigResourceType
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.config.definitions.topic import ALL_TOPIC_CONFIGS
from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages import k32_describe_configs as k32
from protocol.messages import k33_alter_configs as k33
from protocol.messages import k44_incremental_alter_configs as k44
from tests.unit.support.handlers import Handlers, start_handlers

PROPERTIES = {
    "log.retention.hours": "24",
    "log.roll.ms": "8640000",
    "log.cleanup.policy": "compact , delete",
    "group.consumer.session.timeout.ms": "46000",
    "log.cleaner.io.max.bytes.per.second": "12345678",
    "background.threads": "+12",
    "log.segment.bytes": "2000000",
    "listener.name.plaintext.max.connections": "77",
}

RECORDED_PROPERTIES = {**PROPERTIES, "ssl.keystore.password": "secret", "num.partitions": "4"}
RESPONSES = Path(__file__).with_name("kafka_4_4_config_responses.jsonl")

# Configs that Kafka does not have.
OWN = {"flush.before.ack", "replica.lag.max.messages", "allow.everyone.if.no.acl.found", "super.users"} | {
    name
    for name in [*ALL_TOPIC_CONFIGS, *BROKER_CONFIGS, "kbroker.share.retry.delays.ms"]
    if name.startswith(("errors.deadletterqueue.", "kbroker.", "zookeeper."))
}
# Configs whose defaults differ, and those that the recorded node had set besides PROPERTIES.
OTHER_VALUES = {
    "broker.id",
    "controller.listener.names",
    "group.initial.rebalance.delay.ms",
    "log.retention.hours",
    "node.id",
    "offsets.topic.replication.factor",
    "process.roles",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
}
# Sources of values.
STATIC, DEFAULT = 4, 5
MACHINE = {"advertised.listeners", "controller.quorum.voters", "listeners", "log.dir", "log.dirs"}


def expected(config: list[Any]) -> list[Any]:
    """Return kbroker's form of a recorded config: name, value, read_only, source, sensitive, synonyms, type."""
    name, value, read_only, source, sensitive, synonyms, config_type = config
    if name == "ssl.keystore.password":
        # The recorded node has it among its PROPERTIES; kbroker does not start with it.
        assert source == STATIC
        source, synonyms = DEFAULT, []
    if name == "min.insync.replicas":
        # With the eligible leader replicas feature, Kafka sets it for all brokers. kbroker does not have the feature.
        synonyms = [synonym for synonym in synonyms if synonym[2] != 3]
        source = synonyms[0][2]
    if name in ("log.cleanup.policy", "cleanup.policy") and ["log.cleanup.policy", "", 3] in synonyms:
        # Kafka subtracts from the config's default, kbroker from the value in effect.
        value = "compact"
        synonyms[synonyms.index(["log.cleanup.policy", "", 3])][1] = value
    two_weeks = [
        ["log.retention.hours", "336", 5] if synonym == ["log.retention.hours", "168", 5] else synonym
        for synonym in synonyms
    ]
    return [name, value, read_only, source, sensitive, two_weeks, config_type]


def expected_message(message: str | None) -> str | None:
    return message and message.removeprefix("requirement failed: ")


async def replay(api: str) -> tuple[int, list[str]]:
    """Replay all steps. Return the number of steps of one API, and the differences in their responses."""
    handlers = await start_handlers(**{name.replace(".", "_"): value for name, value in PROPERTIES.items()})
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1), NewTopic("u", 1)], False)

    async def use_dynamic_configs(_: object) -> None:
        metadata = handlers.services.metadata
        common, own = (
            metadata.overrides(ConfigResourceType.BROKER, ""),
            metadata.overrides(ConfigResourceType.BROKER, "1"),
        )
        handlers.services.config = handlers.services.config.with_dynamic(common, own)

    handlers.member.add_listener(use_dynamic_configs)
    api_differences: list[str] = []
    steps = 0
    for line in RESPONSES.open():
        step = json.loads(line)
        differences = await globals()[f"_{step['api']}"](handlers, step)
        if step["api"] == api:
            steps += 1
            api_differences += [f"{step['step']}: {difference}" for difference in differences]
    return steps, api_differences


async def _incremental(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    resources = [
        k44.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[k44.AlterableConfig(name=n, config_operation=op, value=v) for n, op, v in configs],
        )
        for resource_type, name, configs in step["resources"]
    ]
    response = await handlers.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=step["validate_only"]
    )
    return _compare_errors(response, step)


async def _replace(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    resources = [
        k33.AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[k33.AlterableConfig(name=n, value=v) for n, v in configs],
        )
        for resource_type, name, configs in step["resources"]
    ]
    response = await handlers.request(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=step["validate_only"])
    return _compare_errors(response, step)


def _compare_errors(response: Any, step: dict[str, Any]) -> list[str]:
    errors = [[result.error_code, result.error_message] for result in response.responses]
    resources = [[result.resource_type, result.resource_name] for result in response.responses]
    assert resources == [resource[:2] for resource in step["resources"]]
    recorded = [[code, expected_message(message)] for code, message in step["answers"]]
    return [] if errors == recorded else [f"{errors}, not {recorded}"]


async def _describe(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    resource_type, name = step["resource"]
    resource = k32.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=step["keys"]
    )
    response = await handlers.request(
        ApiKey.DESCRIBE_CONFIGS, step["version"], resources=[resource], include_synonyms=step["synonyms"]
    )
    (result,) = response.results
    code, message, configs = step["answer"]
    if [result.error_code, result.error_message] != [code, message]:
        return [f"{result.error_code} {result.error_message}, not {code} {message}"]
    described = {config.name: _fields(config) for config in result.configs}
    recorded = {config[0]: expected(config) for config in configs}
    ignored = OWN | OTHER_VALUES | MACHINE
    return [
        f"{described.get(name)}, not {recorded.get(name)}"
        for name in sorted((described.keys() | recorded.keys()) - ignored)
        if described.get(name) != recorded.get(name)
    ]


def _fields(config: Any) -> list[Any]:
    return [
        config.name,
        config.value,
        config.read_only,
        config.config_source,
        config.is_sensitive,
        [[synonym.name, synonym.value, synonym.source] for synonym in config.synonyms],
        config.config_type,
    ]


async def _list(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    fields = {"resource_types": step["types"]} if step["version"] else {}
    response = await handlers.request(ApiKey.LIST_CONFIG_RESOURCES, step["version"], **fields)
    resources = [[resource.resource_type, resource.resource_name] for resource in response.config_resources]
    listed = [response.error_code, resources]
    # Kafka's order is arbitrary.
    recorded = [step["error"], sorted(step["answer"], key=lambda resource: (-resource[0], resource[1]))]
    return [] if listed == recorded else [f"{listed}, not {recorded}"]


def record(bootstrap: str) -> None:
    """Send the requests of all steps to a new node of Kafka, and store its responses."""
    from tests.compat.wire.client import Client  # which needs kio

    client = Client(bootstrap)
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("t", "u")]
    client.request("CreateTopics", 7, topics=topics, timeout=10_000)
    lines = []
    for line in RESPONSES.read_text().splitlines():
        step = json.loads(line)
        match step["api"]:
            case "incremental" | "replace" as api:
                rows = [
                    {
                        "resource_type": resource_type,
                        "resource_name": name,
                        "configs": [_config_fields(*config) for config in configs],
                    }
                    for resource_type, name, configs in step["resources"]
                ]
                name, version = ("IncrementalAlterConfigs", 1) if api == "incremental" else ("AlterConfigs", 2)
                response = client.request(name, version, resources=rows, validate_only=step["validate_only"])
                by_name = {(row.resource_type, row.resource_name): row for row in response.responses}
                rows_in_order = [by_name[int(row["resource_type"]), row["resource_name"]] for row in rows]
                step["answers"] = [[int(row.error_code), row.error_message] for row in rows_in_order]
                # Kafka describes the new configs a moment after its response.
                time.sleep(0.5)
            case "describe":
                resource_type, name = step["resource"]
                row = {"resource_type": resource_type, "resource_name": name, "configuration_keys": step["keys"]}
                response = client.request(
                    "DescribeConfigs", step["version"], resources=[row], include_synonyms=step["synonyms"]
                )
                [result] = response.results
                configs = [_fields_of_kio(config) for config in result.configs if config.name not in MACHINE]
                step["answer"] = [int(result.error_code), result.error_message, sorted(configs)]
            case "list":
                types = {"resource_types": step["types"]} if step["version"] else {}
                response = client.request("ListConfigResources", step["version"], **types)
                step["error"] = int(response.error_code)
                step["answer"] = [
                    [getattr(row, "resource_type", 16), row.resource_name] for row in response.config_resources
                ]
        lines.append(json.dumps(step))
    RESPONSES.write_text("\n".join(lines) + "\n")


def _config_fields(name: str, *rest: Any) -> dict[str, Any]:
    """Return a config of a request, whose row has its operation only if that is not to replace all configs."""
    *operation, value = rest
    return {"name": name, "value": value, **({"config_operation": operation[0]} if operation else {})}


def _fields_of_kio(config: Any) -> list[Any]:
    return [
        config.name,
        config.value,
        config.read_only,
        int(config.config_source),
        config.is_sensitive,
        [[synonym.name, synonym.value, int(synonym.source)] for synonym in config.synonyms],
        int(getattr(config, "config_type", 0)),
    ]


if __name__ == "__main__":
    record(sys.argv[1])
