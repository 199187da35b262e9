"""Requests that describe, alter and list configs of any resource, to Apache Kafka as well."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kbroker.cli.common.client import error_code_text, raise_error, topic_error
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.output import ProgressBar
from kbroker.client import admin
from kbroker.client.admin import (
    MAX_RESOURCES,
    ConfigChanges,
    TypedResource,
    chunks,
    describe_configs_request,
    describe_topics,
)
from kbroker.client.cluster import ClusterClient
from protocol.client import UnsupportedVersionError
from protocol.messages.k32_describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from protocol.messages.k74_list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse

RESOURCE_TYPES = {"topic": 2, "broker": 4, "logger": 8, "client-metrics": 16, "group": 32}
KINDS = {number: kind for kind, number in RESOURCE_TYPES.items()}
# A broker that does not respond within this time is probably down.
TIMEOUT_S = 5.0

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
UNKNOWN_SOURCE = ("UNKNOWN", "unknown")
SOURCE_TEXTS = dict([*SOURCES.values(), UNKNOWN_SOURCE])
DEFAULT_SOURCE = "DEFAULT_CONFIG"
TYPE_NAMES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")

Config = dict[str, Any]


class Resource(NamedTuple):
    """A resource that has configs. The broker with an empty name stands for all brokers."""

    kind: str
    name: str

    def __str__(self) -> str:
        return "all brokers" if self == ALL_BROKERS else f"{self.kind} {self.name}"

    @property
    def typed(self) -> TypedResource:
        return TypedResource(RESOURCE_TYPES[self.kind], self.name)

    @property
    def broker_id(self) -> int | None:
        """The broker that requests must be sent to; None for any broker. Raises CliError."""
        if self.kind not in ("broker", "logger") or self == ALL_BROKERS:
            return None
        if not self.name.isdecimal():
            raise usage_error(f"the name of a {self.kind} is a broker id, not {self.name!r}")
        return int(self.name)


ALL_BROKERS = Resource("broker", "")


def parse_kind(text: str) -> str:
    """Parse `topic`, `broker`, `group`, `client-metrics` or `logger`, or the plural of one."""
    kind = text.lower().removesuffix("s") if text.lower() != "client-metrics" else "client-metrics"
    if kind not in RESOURCE_TYPES:
        raise usage_error(f"expected topic, broker, group, client-metrics or logger, not {text!r}")
    return kind


def describe_configs(
    client: ClusterClient, resources: Sequence[Resource], *, documented: bool = False
) -> dict[Resource, list[Config]]:
    """Return all configs of each resource, sorted by name. Raises CliError for the first error."""
    described: dict[Resource, list[Config]] = {}
    with ProgressBar("reading configs", len(resources)) as progress:
        # The configs of one broker can only be requested from that broker.
        alone = [[resource] for resource in resources if resource.broker_id is not None]
        others = [resource for resource in resources if resource.broker_id is None]
        for chunk in [*alone, *chunks(others, MAX_RESOURCES)]:
            typed = [resource.typed for resource in chunk]
            described |= _described(
                admin.describe_configs(client, typed, documented=documented, broker=chunk[0].broker_id)
            )
            progress.advance(len(chunk))
    return described


def describe_broker_configs(client: ClusterClient, broker_ids: Sequence[int]) -> dict[Resource, list[Config]]:
    """Return all configs of the brokers that respond. Raises CliError for the first error that one returns."""
    requests = [(broker, describe_configs_request([Resource("broker", str(broker)).typed])) for broker in broker_ids]
    described: dict[Resource, list[Config]] = {}
    for _, response in client.request_all(requests, DescribeConfigsResponse, TIMEOUT_S):
        described |= _described(response.results)
    return described


def _described(results: Iterable[DescribeConfigsResult]) -> dict[Resource, list[Config]]:
    described = {}
    for result in results:
        resource = Resource(KINDS[result.resource_type], result.resource_name)
        if result.error_code:
            raise _resource_error(resource, result.error_code, result.error_message)
        described[resource] = sorted(map(_config, result.configs), key=lambda config: config["name"])
    return described


def _config(entry: DescribeConfigsResourceResult) -> Config:
    def source(number: int) -> str:
        return SOURCES.get(number, UNKNOWN_SOURCE)[0]

    return {
        "name": entry.name,
        "value": entry.value,
        "source": source(entry.config_source),
        "type": TYPE_NAMES[entry.config_type if entry.config_type < len(TYPE_NAMES) else 0],
        "sensitive": entry.is_sensitive,
        "read_only": entry.read_only,
        "synonyms": [{"name": row.name, "value": row.value, "source": source(row.source)} for row in entry.synonyms],
        "documentation": entry.documentation,
    }


def alter_configs(
    client: ClusterClient, resource: Resource, changes: ConfigChanges, *, dry_run: bool = False, at_any: bool = False
) -> None:
    """Make all changes, (operation, value) by config name, or none. Raises CliError if the broker rejects them.

    With `at_any`, the request for a broker may go to another one.
    """
    broker = None if at_any else resource.broker_id
    result = admin.alter_configs(client, resource.typed, changes, validate_only=dry_run, broker=broker)
    if result.error_code:
        raise _resource_error(resource, result.error_code, result.error_message)


def _resource_error(resource: Resource, code: int, message: str | None) -> CliError:
    if resource.kind == "topic":
        return topic_error(resource.name, code, message)
    return CliError(f"{resource}: {error_code_text(code, message)}")


def list_resources(client: ClusterClient, kinds: Sequence[str]) -> list[Resource]:
    """Return all resources of these kinds that can have configs, those of single brokers excepted."""
    resources = [ALL_BROKERS] if "broker" in kinds else []
    if "topic" in kinds:
        resources += [Resource("topic", topic.name) for topic in describe_topics(client)]
    types = [RESOURCE_TYPES[kind] for kind in ("group", "client-metrics") if kind in kinds]
    others = []
    # Brokers before Kafka 4.1 cannot list them.
    with suppress(UnsupportedVersionError):
        if types:
            response = client.request(ListConfigResourcesRequest(resource_types=types), ListConfigResourcesResponse)
            raise_error(response.error_code)
            others = [Resource(KINDS[row.resource_type], row.resource_name) for row in response.config_resources]
    return sorted(resources) + sorted(others)
