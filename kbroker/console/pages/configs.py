"""The configs of topics, brokers and groups: what differs from the default first; changes that the broker validates."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.values import format_duration, format_size, parse_configs
from kbroker.cli.configs.app import own_configs, select_configs, value_text
from kbroker.cli.configs.requests import (
    ALL_BROKERS,
    DEFAULT_SOURCE,
    SOURCE_TEXTS,
    Config,
    Resource,
    alter_configs,
    describe_configs,
    list_resources,
    parse_kind,
)
from kbroker.client.admin import OPERATIONS, ConfigChanges, describe_cluster
from kbroker.client.cluster import ClusterClient
from kbroker.client.groups import list_groups
from kbroker.console.rendering import CONFIRMED, confirmation, console, page, read_form, see_other

NUMBERS = ("int", "short", "long")
# What a config that is deleted gets if the broker does not report it.
INHERITED = "the value that it inherits"
# Of configs of brokers that stand for one in milliseconds.
UNITS_MS = {"hours": 3_600_000, "minutes": 60_000}


class ConfigRow(NamedTuple):
    """A config as a page shows it. `default`: None if the broker does not report it.

    `readable`, `readable_default`: the values with units, if they are durations or sizes.
    """

    config: Config
    value: str
    readable: str
    source: str
    default: str | None
    readable_default: str

    @property
    def differs(self) -> bool:
        return bool(self.config["source"] != DEFAULT_SOURCE)


def read_resources(cluster: ClusterClient) -> list[Resource]:
    """Return all brokers, topics and groups, and the other resources that have configs."""
    brokers = [Resource("broker", str(broker.broker_id)) for broker in describe_cluster(cluster).brokers]
    groups = {Resource("group", group.group_id) for group in list_groups(cluster)}
    listed = list_resources(cluster, ("topic", "group", "client-metrics"))
    others = sorted(groups.union(resource for resource in listed if resource.kind != "topic"))
    return [ALL_BROKERS, *brokers, *(resource for resource in listed if resource.kind == "topic"), *others]


async def configs(request: Request) -> Response:
    resources = await console(request).kafka.cached(read_resources)
    return page(request, "configs.html", resources=resources)


def read_rows(cluster: ClusterClient, resource: Resource) -> list[ConfigRow]:
    """Return the configs of a resource: those set for it, others that differ from their defaults, then the rest.

    Raises CliError.
    """
    described = describe_configs(cluster, [resource], documented=True)[resource]
    own = {config["name"] for config in own_configs(resource, described)}
    rows = [
        ConfigRow(
            config,
            value_text(config),
            readable(config, config["value"]),
            SOURCE_TEXTS[config["source"]],
            default,
            readable(config, default),
        )
        for config in described
        for default in [default_of(config)]
    ]
    return sorted(rows, key=lambda row: (row.config["name"] not in own, not row.differs, row.config["name"]))


def default_of(config: Config) -> str | None:
    """Return the value that Kafka has by default."""
    if config["source"] == DEFAULT_SOURCE:
        return value_text(config)
    defaults = [synonym for synonym in config["synonyms"] if synonym["source"] == DEFAULT_SOURCE]
    return synonym_value(config, defaults[-1]) if defaults else None


def synonym_value(config: Config, synonym: Mapping[str, str | None]) -> str | None:
    """Return the value that a config inherits from a synonym: retention.ms has some in hours."""
    name, value = synonym["name"] or "", synonym["value"]
    unit_ms = UNITS_MS.get(name.rpartition(".")[2]) if unit_of(config) == "ms" else None
    return str(int(value) * unit_ms) if unit_ms is not None and value is not None and value.isdecimal() else value


def unit_of(config: Config) -> str | None:
    """Return ms or bytes if a config is a duration or a size."""
    words = config["name"].split(".")
    if config["type"] not in NUMBERS:
        return None
    return "ms" if words[-1] == "ms" else "bytes" if "bytes" in words else None


def readable(config: Config, value: str | None) -> str:
    """Return a value of a duration or a size with its unit, else an empty text."""
    unit = unit_of(config)
    if unit is None or value is None or not value.isdecimal():
        return ""
    if int(value) in (2**31 - 1, 2**63 - 1):
        return "no limit"
    return format_duration(int(value)) if unit == "ms" else format_size(int(value))


async def one(request: Request) -> Response:
    resource = resource_of(request.query_params.get("kind", ""), request.query_params.get("name", ""))
    rows = await console(request).kafka.cached(read_rows, resource)
    return page(
        request, "config.html", resource=resource, rows=rows, chosen=request.query_params.get("config"),
        operations=list(OPERATIONS),
    )  # fmt: skip


def resource_of(kind: str, name: str) -> Resource:
    """Raises CliError."""
    kind = parse_kind(kind)
    if not name and kind not in ("broker", "group"):
        raise usage_error(f"the {kind} has no name")
    return Resource(kind, name)


# Changes.


class ConfigChange(NamedTuple):
    """The change of one config. `value`: None to delete it."""

    name: str
    operation: str
    value: str | None

    @property
    def changes(self) -> ConfigChanges:
        return {self.name: (self.operation, self.value)}


def preview(cluster: ClusterClient, resource: Resource, change: ConfigChange) -> tuple[ConfigChange, Config]:
    """Return a valid change, its value without units, and the config as it is. Raises CliError."""
    described = describe_configs(cluster, [resource])[resource]
    [config] = select_configs(resource, described, [change.name], True)
    if config["read_only"]:
        raise CliError(f"{change.name} can be set only in the broker's properties file, before it starts")
    if change.value is not None and change.operation == "SET":
        change = change._replace(value=without_unit(config, change.value))
    alter_configs(cluster, resource, change.changes, dry_run=True)
    return change, config


def without_unit(config: Config, text: str) -> str:
    """Return milliseconds for a duration such as 5d, and bytes for a size such as 1GiB. Raises CliError."""
    name = config["name"]
    return parse_configs([f"{name}={text.strip()}"])[name]


def value_after(resource: Resource, config: Config, change: ConfigChange) -> str | None:
    """Return the value that a config will have."""
    items = [item for item in (config["value"] or "").split(",") if item]
    given = (change.value or "").split(",")
    match change.operation:
        case "DELETE":
            inherited = config["synonyms"][1:] if own_configs(resource, [config]) else config["synonyms"]
            return synonym_value(config, inherited[0]) if inherited else INHERITED
        case "APPEND":
            return ",".join(dict.fromkeys([*items, *given]))
        case "SUBTRACT":
            return ",".join(item for item in items if item not in given)
    return change.value


async def alter(request: Request) -> Response:
    form, kafka = await read_form(request), console(request).kafka
    resource = resource_of(form.get("kind", ""), form.get("name", ""))
    operation = form.get("operation", "")
    if operation not in OPERATIONS:
        raise usage_error(f"an operation is one of {', '.join(OPERATIONS)}, not {operation!r}")
    value = None if operation == "DELETE" else form.get("value", "")
    change = ConfigChange(form.get("config", ""), operation, value)
    back = f"/configs/one?{urlencode({'kind': resource.kind, 'name': resource.name})}"
    if CONFIRMED in form:
        await kafka.read(alter_configs, resource, change.changes)
        kafka.forget()
        return see_other(back)
    change, config = await kafka.read(preview, resource, change)
    after = value_after(resource, config, change)
    shown = (
        [value_text(config), readable(config, config["value"]), "hidden" if config["sensitive"] else after,
         readable(config, after)]
    )  # fmt: skip
    return confirmation(
        request, f"Change a config of {resource}", ("config", "now", "", "after", ""), [[change.name, *shown]],
        verb="Change", back=back, notes=["The broker has validated the change and would accept it."],
        fields={"kind": resource.kind, "name": resource.name, "config": change.name, "operation": operation,
                "value": change.value},
    )  # fmt: skip


routes = [
    Route("/configs", configs),
    Route("/configs/one", one),
    Route("/configs/alter", alter, methods=["POST"]),
]
