"""Reading and changing configs of any resource, on Apache Kafka as well.

kafka-python's admin client has methods for that, which cannot ask for documentation, cannot name all brokers
(the resource with an empty name) and drop a resource's error; so the requests are made here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.client import refusal, send, topic_refusal
from kbroker.cli.common.errors import CliError, usage
from kbroker.cli.common.output import LongWork, chunks
from protocol.errors import ErrorCode

TYPES = {"topic": 2, "broker": 4, "logger": 8, "client-metrics": 16, "group": 32}
KINDS = {number: kind for kind, number in TYPES.items()}
OPERATIONS = {"SET": 0, "DELETE": 1, "APPEND": 2, "SUBTRACT": 3}
MOST_RESOURCES = 200  # in one request; each answers with some forty configs

# Kafka's names of a config's source, and the words for them in tables.
SOURCES = {
    1: ("DYNAMIC_TOPIC_CONFIG", "topic"),
    2: ("DYNAMIC_BROKER_CONFIG", "broker"),
    3: ("DYNAMIC_DEFAULT_BROKER_CONFIG", "all brokers"),
    4: ("STATIC_BROKER_CONFIG", "started with"),
    5: ("DEFAULT_CONFIG", "default"),
    6: ("DYNAMIC_BROKER_LOGGER_CONFIG", "logger"),
    7: ("DYNAMIC_CLIENT_METRICS_CONFIG", "client-metrics"),
    8: ("DYNAMIC_GROUP_CONFIG", "group"),
}
SOURCE_WORDS = dict(SOURCES.values())
DEFAULT_SOURCE = "DEFAULT_CONFIG"
TYPE_NAMES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")

Config = dict[str, Any]
Changes = Mapping[str, tuple[str, str | None]]


class Resource(NamedTuple):
    """Whose configs they are; all brokers together are the broker with an empty name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return "all brokers" if self == ALL_BROKERS else f"{self.kind} {self.name}"


ALL_BROKERS = Resource("broker", "")


def kind_of(text: str) -> str:
    """`topic`, `broker`, `group`, `client-metrics` or `logger`, or the plural of one."""
    kind = text.lower().removesuffix("s") if text.lower() != "client-metrics" else "client-metrics"
    if kind not in TYPES:
        raise usage(f"expected topic, broker, group, client-metrics or logger, not {text!r}")
    return kind


def describe(client: Any, resources: Sequence[Resource], *, documented: bool = False) -> dict[Resource, list[Config]]:
    """All configs of each resource, sorted by name. Raises CliError for the first one that is refused."""
    found: dict[Resource, list[Config]] = {}
    with LongWork("reading configs", len(resources)) as work:
        for part in _parts(resources):
            for result in _describe_part(client, part, documented):
                resource = Resource(KINDS[result.resource_type], result.resource_name)
                if result.error_code:
                    raise CliError(_refused(resource, result.error_code, result.error_message))
                found[resource] = sorted(
                    (_config(entry) for entry in result.configs), key=lambda config: config["name"]
                )
                work.advance(1)
    return found


def _parts(resources: Sequence[Resource]) -> list[Sequence[Resource]]:
    """What one request may ask: a single broker's configs are that broker's to tell."""
    alone = [[resource] for resource in resources if _node(resource) is not None]
    return [*alone, *chunks([resource for resource in resources if _node(resource) is None], MOST_RESOURCES)]


def _node(resource: Resource) -> int | None:
    if resource.kind not in ("broker", "logger") or resource == ALL_BROKERS:
        return None
    if not resource.name.isdecimal():
        raise usage(f"a {resource.kind} is named by its broker's number, not {resource.name!r}")
    return int(resource.name)


def _describe_part(client: Any, part: Sequence[Resource], documented: bool) -> Any:
    from kafka.protocol.admin import DescribeConfigsRequest

    request = DescribeConfigsRequest(
        resources=[(TYPES[resource.kind], resource.name, None) for resource in part],
        include_synonyms=True,
        include_documentation=documented,
        min_version=1,
    )
    return send(client, request, _node(part[0])).results


def _config(entry: Any) -> Config:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": SOURCES.get(entry.config_source, ("UNKNOWN", "unknown"))[0],
        "type": TYPE_NAMES[kind] if (kind := entry.config_type or 0) < len(TYPE_NAMES) else TYPE_NAMES[0],
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


def alter(client: Any, resource: Resource, changes: Changes, *, dry_run: bool = False) -> None:
    """Make all the changes, (operation, value) by config name, or none. Raises CliError when they are refused."""
    from kafka.protocol.admin import IncrementalAlterConfigsRequest

    configs = [(name, OPERATIONS[operation], value) for name, (operation, value) in changes.items()]
    request = IncrementalAlterConfigsRequest(
        resources=[(TYPES[resource.kind], resource.name, configs)], validate_only=dry_run
    )
    [answer] = send(client, request, _node(resource)).responses
    if answer.error_code:
        raise CliError(_refused(resource, answer.error_code, answer.error_message))


def _refused(resource: Resource, code: int, message: str | None) -> str:
    if resource.kind == "topic":
        return topic_refusal(resource.name, code, message)
    return f"{resource}: {refusal(code, message)}"


def everything(client: Any, kinds: Sequence[str]) -> list[Resource]:
    """All resources of these kinds that may have configs of their own."""
    found = []
    if "topic" in kinds:
        found += [Resource("topic", topic["name"]) for topic in client.describe_topics(None)]
    if "broker" in kinds:
        nodes = [str(broker["broker_id"]) for broker in client.describe_cluster()["brokers"]]
        found += [ALL_BROKERS, *(Resource("broker", node) for node in nodes)]
    others = [kind for kind in ("group", "client-metrics") if kind in kinds]
    return sorted(found) + sorted(_listed(client, others) if others else [])


def _listed(client: Any, kinds: Sequence[str]) -> list[Resource]:
    from kafka.errors import IncompatibleBrokerVersion
    from kafka.protocol.admin import ListConfigResourcesRequest

    request = ListConfigResourcesRequest(resource_types=[TYPES[kind] for kind in kinds], min_version=1)
    try:
        answer = send(client, request)
    except IncompatibleBrokerVersion:
        # before Kafka 4.1 nobody could list them
        return []
    if answer.error_code:
        raise CliError(refusal(ErrorCode(answer.error_code)))
    return [Resource(KINDS[found.resource_type], found.resource_name) for found in answer.config_resources]
