"""The config APIs against what Apache Kafka 4.3.1 answered to the same steps.

kafka_4_3_config_answers.jsonl has one step a line, in order, with the answer of a single node that had PROPERTIES
(configs that tell of its machine are left out). Where kbroker means to answer otherwise, `expected` says how.
"""

import json
from pathlib import Path
from typing import Any

from kbroker.config.config_resource import ConfigResourceType
from kbroker.config.definitions.broker import BROKER_CONFIGS
from kbroker.metadata.topics.create_topics import NewTopic
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
    "ssl.keystore.password": "secret",
    "log.segment.bytes": "2000000",
    "listener.name.plaintext.max.connections": "77",
}

# kbroker's own, which Kafka does not have.
OWN = {"flush.before.ack", *(name for name in BROKER_CONFIGS if name.startswith("kbroker."))}
# Defaults of one's own, and what the recorded node had set besides PROPERTIES.
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
MACHINE = {"advertised.listeners", "controller.quorum.voters", "listeners", "log.dir", "log.dirs"}


def expected(config: list[Any]) -> list[Any]:
    """What kbroker answers where Kafka has `config`: name, value, read_only, source, sensitive, synonyms, type."""
    name, value, read_only, source, sensitive, synonyms, kind = config
    if name == "min.insync.replicas":
        # Kafka pins it for all brokers when the eligible leader replicas feature is on, which is not here.
        synonyms = [synonym for synonym in synonyms if synonym[2] != 3]
        source = synonyms[0][2]
    if name in ("log.cleanup.policy", "cleanup.policy") and ["log.cleanup.policy", "", 3] in synonyms:
        # Kafka subtracts from the config's default, kbroker from what is in effect.
        value = "compact"
        synonyms[synonyms.index(["log.cleanup.policy", "", 3])][1] = value
    two_weeks = [
        ["log.retention.hours", "336", 5] if synonym == ["log.retention.hours", "168", 5] else synonym
        for synonym in synonyms
    ]
    return [name, value, read_only, source, sensitive, two_weeks, kind]


def expected_message(message: str | None) -> str | None:
    return message and message.removeprefix("requirement failed: ")


async def play(api: str) -> tuple[int, list[str]]:
    """Plays all steps; gives how many are of this API, and what came out otherwise in these."""
    handlers = await start_handlers(**{name.replace(".", "_"): value for name, value in PROPERTIES.items()})
    await handlers.member.controller.create_topics([NewTopic("t", 1), NewTopic("u", 1)], False)

    async def follow(_: object) -> None:
        metadata = handlers.services.metadata
        common, own = (
            metadata.overrides(ConfigResourceType.BROKER, ""),
            metadata.overrides(ConfigResourceType.BROKER, "1"),
        )
        handlers.services.config = handlers.services.config.with_dynamic(common, own)

    handlers.member.add_listener(follow)
    found: list[str] = []
    steps = 0
    for line in Path(__file__).with_name("kafka_4_3_config_answers.jsonl").open():
        step = json.loads(line)
        differences = await globals()[f"_{step['api']}"](handlers, step)
        if step["api"] == api:
            steps += 1
            found += [f"{step['step']}: {difference}" for difference in differences]
    return steps, found


async def _incremental(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    resources = [
        k44.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[k44.AlterableConfig(name=n, config_operation=op, value=v) for n, op, v in configs],
        )
        for kind, name, configs in step["resources"]
    ]
    answer = await handlers.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=step["validate_only"]
    )
    return _altered(answer, step)


async def _replace(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    resources = [
        k33.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[k33.AlterableConfig(name=n, value=v) for n, v in configs],
        )
        for kind, name, configs in step["resources"]
    ]
    answer = await handlers.request(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=step["validate_only"])
    return _altered(answer, step)


def _altered(answer: Any, step: dict[str, Any]) -> list[str]:
    got = [[one.error_code, one.error_message] for one in answer.responses]
    named = [[one.resource_type, one.resource_name] for one in answer.responses]
    assert named == [resource[:2] for resource in step["resources"]]
    wanted = [[code, expected_message(message)] for code, message in step["answers"]]
    return [] if got == wanted else [f"{got}, not {wanted}"]


async def _describe(handlers: Handlers, step: dict[str, Any]) -> list[str]:
    kind, name = step["resource"]
    resource = k32.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=step["keys"])
    answer = await handlers.request(
        ApiKey.DESCRIBE_CONFIGS, step["version"], resources=[resource], include_synonyms=step["synonyms"]
    )
    (result,) = answer.results
    code, message, configs = step["answer"]
    if [result.error_code, result.error_message] != [code, message]:
        return [f"{result.error_code} {result.error_message}, not {code} {message}"]
    got = {config.name: _fields(config) for config in result.configs}
    wanted = {config[0]: expected(config) for config in configs}
    left_out = OWN | OTHER_VALUES | MACHINE
    return [
        f"{got.get(key)}, not {wanted.get(key)}"
        for key in sorted((got.keys() | wanted.keys()) - left_out)
        if got.get(key) != wanted.get(key)
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
    answer = await handlers.request(ApiKey.LIST_CONFIG_RESOURCES, step["version"], **fields)
    got = [answer.error_code, [[one.resource_type, one.resource_name] for one in answer.config_resources]]
    # Kafka names them in no order.
    wanted = [step["error"], sorted(step["answer"], key=lambda one: (-one[0], one[1]))]
    return [] if got == wanted else [f"{got}, not {wanted}"]
