"""`kbroker config show`: every broker config with its value and origin."""

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import typer

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import AsJson, option
from kbroker.cli.common.output import print_rows
from kbroker.cli.start.command import Advertise, ConfigFile, DataDir, Listen, Properties
from kbroker.cli.start.options import DEFAULT_ORIGIN, StartOptions, load_properties, origins_text
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.broker.broker_config import broker_config_key
from kbroker.config.describe import describe_broker
from kbroker.config.sources.static_configs import ALIASES, StaticConfigs
from kbroker.config.values import HIDDEN

app = typer.Typer()

# Origins of dynamic configs, by Kafka's name of their source.
DYNAMIC_ORIGINS = {
    "DYNAMIC_BROKER_CONFIG": "altered, this broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "altered, all brokers",
}
# The origin of a running broker's static config whose value does not follow from the options of this command.
STATIC_ORIGIN = "the broker's start"


class ConfigValue(NamedTuple):
    """A config's value. `origin` is "default", a file and line, a variable, an option, or how it was altered."""

    name: str
    value: str | None
    origin: str


@app.callback()
def _root() -> None:
    pass


@app.command("show")
def show(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    properties: Properties = None,
    everything: Annotated[bool, option("--all", "Also show configs at their defaults.")] = False,
    bootstrap: Annotated[
        str | None, option("--bootstrap -b HOST:PORT", "Show the configs of this running broker.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the configuration that `kbroker start` would run with, given the same options, file and environment.

    With --bootstrap, show the configuration of a running broker, with configs that were altered since it started.
    """
    options = StartOptions(config, data_dir, listen or [], advertise or [], properties or [])
    static, _ = load_properties(options, os.environ)
    configs = start_configs(static) if bootstrap is None else running_configs(bootstrap, static)
    selected = [config for config in configs if everything or config.origin != DEFAULT_ORIGIN]
    document = [{"name": config.name, "value": config.value, "source": config.origin} for config in selected]
    print_rows(as_json, document, ("config", "value", "from"), selected)


def start_configs(static: StaticConfigs) -> list[ConfigValue]:
    """Return the configs that a broker would start with. Raises CliError if it would not start."""
    try:
        config = BrokerConfig.load({name: source.text for name, source in static.items()})
    except ConfigError as error:
        raise CliError(f"{error}{origins_text(str(error), static)}") from None
    return [
        ConfigValue(entry.key.name, _value(entry.value, entry.key.is_sensitive), _static_origin(entry.key.name, static))
        for entry in describe_broker(config)
    ]


def running_configs(bootstrap: str, static: StaticConfigs) -> list[ConfigValue]:
    """Return the configs of a running broker, with origins from `static` where the values agree."""
    from kbroker.cli.configs.requests import Resource, describe_configs
    from kbroker.client.admin import describe_cluster

    with admin_client(bootstrap) as client:
        broker_id = _broker_id((broker.broker_id for broker in describe_cluster(client).brokers), static)
        resource = Resource("broker", str(broker_id))
        configs = describe_configs(client, [resource])[resource]
    return [
        ConfigValue(config["name"], _value(config["value"], config["sensitive"]), _running_origin(config, static))
        for config in configs
    ]


def _broker_id(broker_ids: Iterable[int], static: StaticConfigs) -> int:
    known = sorted(broker_ids)
    node_id = static.get("node.id") or static.get("broker.id")
    if node_id is None:
        if len(known) != 1:
            raise usage_error(f"the cluster has the brokers {known}: choose one with --set node.id=N")
        return known[0]
    if not node_id.text.strip().isdecimal() or int(node_id.text) not in known:
        raise CliError(f"no broker has node.id {node_id.text}; the cluster has {known}")
    return int(node_id.text)


def _running_origin(config: Mapping[str, str], static: StaticConfigs) -> str:
    source = config["source"]
    if source == "STATIC_BROKER_CONFIG":
        name = config["name"]
        origin = _static_origin(name, static)
        return origin if origin != DEFAULT_ORIGIN and _agrees(name, config["value"], static) else STATIC_ORIGIN
    return DYNAMIC_ORIGINS.get(source, DEFAULT_ORIGIN)


def _agrees(name: str, value: str | None, static: StaticConfigs) -> bool:
    """Return whether `static` sets the broker's current value. Brokers hide passwords, which count as equal."""
    source = static.get(name) or static.get(ALIASES.get(name, ""))
    if source is None or value is None:
        return source is not None
    try:
        key = broker_config_key(name)
        return key.parse(source.text) == key.parse(value)
    except ConfigError:
        return source.text == value


def _static_origin(name: str, static: StaticConfigs) -> str:
    # node.id and broker.id are two names of one config.
    source = static.get(name) or (static.get(ALIASES[name]) if name in ("node.id", "broker.id") else None)
    return DEFAULT_ORIGIN if source is None else source.origin


def _value(value: str | None, sensitive: bool) -> str | None:
    return HIDDEN if sensitive and value is None else value
