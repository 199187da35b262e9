"""Requests that describe, alter and list configs of any resource, to Apache Kafka as well.

kafka-python's own methods for this cannot request documentation, cannot address all brokers (the broker resource
with an empty name), and drop the error of a resource.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.client import (
    chunks,
    error_code_text,
    send_request,
    send_to_brokers,
    topic_error_text,
)
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.progress import ProgressBar

RESOURCE_TYPES = {"topic": 2, "broker": 4, "logger": 8, "client-metrics": 16, "group": 32}
KINDS = {number: kind for kind, number in RESOURCE_TYPES.items()}
OPERATIONS = {"SET": 0, "DELETE": 1, "APPEND": 2, "SUBTRACT": 3}
# A broker that does not respond within this time is probably down.
TIMEOUT_MS = 5_000
MAX_RESOURCES = 200  # per request; the response has some forty configs for each

# By the number of a config's source: Kafka's name, and the text in tables.
SOURCES = {
    1: ("DYNAMIC_TOPIC_CONFIG", "topic"),
    2: ("DYNAMIC_BROKER_CONFIG", "broker"),
    3: ("DYNAMIC_DEFAULT_BROKER_CONFIG", "all brokers"),
    4: ("STATIC_BROKER_CONFIG", "static"),
    5: ("DEFAULT_CONFIG", "default"),
    6: ("DYNAMIC_BROKER_LOGGER_CONFIG", "logger"),
    7: ("DYNAMIC_CLIENT_METRICS_CONFIG", "client-metrics"),
    8: ("DYNAMIC_GROUP_CONFIG", "group"),
}
SOURCE_TEXTS = dict(SOURCES.values())
DEFAULT_SOURCE = "DEFAULT_CONFIG"
TYPE_NAMES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")

Config = dict[str, Any]
Changes = Mapping[str, tuple[str, str | None]]


class Resource(NamedTuple):
    """A resource that has configs. The broker with an empty name stands for all brokers."""

    kind: str
    name: str

    def __str__(self) -> str:
        return "all brokers" if self == ALL_BROKERS else f"{self.kind} {self.name}"


ALL_BROKERS = Resource("broker", "")


def parse_kind(text: str) -> str:
    """Parse `topic`, `broker`, `group`, `client-metrics` or `logger`, or the plural of one."""
    kind = text.lower().removesuffix("s") if text.lower() != "client-metrics" else "client-metrics"
    if kind not in RESOURCE_TYPES:
        raise usage_error(f"expected topic, broker, group, client-metrics or logger, not {text!r}")
    return kind


def describe_configs(
    client: Any, resources: Sequence[Resource], *, documented: bool = False
) -> dict[Resource, list[Config]]:
    """Return all configs of each resource, sorted by name. Raises CliError for the first error."""
    described: dict[Resource, list[Config]] = {}
    with ProgressBar("reading configs", len(resources)) as progress:
        for chunk in _requestable(resources):
            response = send_request(client, _describe_request(chunk, documented), _broker_id(chunk[0]))
            described |= _described(response)
            progress.advance(len(chunk))
    return described


def describe_broker_configs(client: Any, broker_ids: Sequence[int]) -> dict[Resource, list[Config]]:
    """Return all configs of the brokers that respond. Raises CliError for the first error that one returns."""
    requests = [(broker, _describe_request([Resource("broker", str(broker))], False)) for broker in broker_ids]
    described: dict[Resource, list[Config]] = {}
    for _, response in send_to_brokers(client, requests, TIMEOUT_MS):
        described |= _described(response)
    return described


def _described(response: Any) -> dict[Resource, list[Config]]:
    described = {}
    for result in response.results:
        resource = Resource(KINDS[result.resource_type], result.resource_name)
        if result.error_code:
            raise CliError(_resource_error_text(resource, result.error_code, result.error_message))
        described[resource] = sorted(map(_config, result.configs), key=lambda config: config["name"])
    return described


def _requestable(resources: Sequence[Resource]) -> list[Sequence[Resource]]:
    """Split resources into requests. The configs of one broker can only be requested from that broker."""
    alone = [[resource] for resource in resources if _broker_id(resource) is not None]
    return [*alone, *chunks([resource for resource in resources if _broker_id(resource) is None], MAX_RESOURCES)]


def _broker_id(resource: Resource) -> int | None:
    """Return the broker that a request must be sent to; None for any broker."""
    if resource.kind not in ("broker", "logger") or resource == ALL_BROKERS:
        return None
    if not resource.name.isdecimal():
        raise usage_error(f"the name of a {resource.kind} is a broker id, not {resource.name!r}")
    return int(resource.name)


def _describe_request(resources: Sequence[Resource], documented: bool) -> Any:
    from kafka.protocol.admin import DescribeConfigsRequest

    return DescribeConfigsRequest(
        resources=[(RESOURCE_TYPES[resource.kind], resource.name, None) for resource in resources],
        include_synonyms=True,
        include_documentation=documented,
        min_version=1,
    )


def _config(entry: Any) -> Config:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": SOURCES.get(entry.config_source, ("UNKNOWN", "unknown"))[0],
        "type": TYPE_NAMES[number] if (number := entry.config_type or 0) < len(TYPE_NAMES) else TYPE_NAMES[0],
        "sensitive": entry.is_sensitive,
        "read_only": entry.read_only,
        "synonyms": [
            {
                "name": synonym.name,
                "value": synonym.value,
                "source": SOURCES.get(synonym.source, ("UNKNOWN", "unknown"))[0],
            }
            for synonym in entry.synonyms
        ],
        "documentation": entry.documentation,
    }


def alter_configs(
    client: Any, resource: Resource, changes: Changes, *, dry_run: bool = False, at_any: bool = False
) -> None:
    """Make all changes, (operation, value) by config name, or none. Raises CliError if the broker rejects them.

    With `at_any`, the request for a broker may go to another one.
    """
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    configs = [(name, OPERATIONS[operation], value) for name, (operation, value) in changes.items()]
    request = IncrementalAlterConfigsRequest(
        resources=[(RESOURCE_TYPES[resource.kind], resource.name, configs)], validate_only=dry_run
    )
    [result] = send_request(client, request, None if at_any else _broker_id(resource)).responses
    if result.error_code:
        raise CliError(_resource_error_text(resource, result.error_code, result.error_message))


def _resource_error_text(resource: Resource, code: int, message: str | None) -> str:
    if resource.kind == "topic":
        return topic_error_text(resource.name, code, message)
    return f"{resource}: {error_code_text(code, message)}"


def list_resources(client: Any, kinds: Sequence[str]) -> list[Resource]:
    """Return all resources of these kinds that can have configs, those of single brokers excepted."""
    resources = [ALL_BROKERS] if "broker" in kinds else []
    if "topic" in kinds:
        resources += [Resource("topic", topic["name"]) for topic in client.describe_topics(None)]
    others = [kind for kind in ("group", "client-metrics") if kind in kinds]
    return sorted(resources) + sorted(_list_config_resources(client, others) if others else [])


def _list_config_resources(client: Any, kinds: Sequence[str]) -> list[Resource]:
    from kafka.errors import IncompatibleBrokerVersion
    from kafka.protocol.admin import ListConfigResourcesRequest

    request = ListConfigResourcesRequest(resource_types=[RESOURCE_TYPES[kind] for kind in kinds], min_version=1)
    try:
        response = send_request(client, request)
    except IncompatibleBrokerVersion:
        # Brokers before Kafka 4.1 cannot list them.
        return []
    if response.error_code:
        raise CliError(error_code_text(response.error_code))
    return [Resource(KINDS[listed.resource_type], listed.resource_name) for listed in response.config_resources]
