"""`kbroker config show`: every broker config with its value and where that comes from."""

import os
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import typer

from kbroker.cli.common.client import AsJson, admin
from kbroker.cli.common.errors import CliError, usage
from kbroker.cli.common.output import print_json, print_table
from kbroker.cli.start.start import UNSET, StartOptions, origins, sourced
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.broker import find_row
from kbroker.config.describe import describe_broker
from kbroker.config.sources import TWINS, Given
from kbroker.config.values import HIDDEN

app = typer.Typer(help="Show what a broker is configured with, and by whom.", no_args_is_help=True)

DYNAMIC = {
    "DYNAMIC_BROKER_CONFIG": "altered, this broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "altered, all brokers",
}
STARTED_WITH = "the broker's start"


class Shown(NamedTuple):
    """One config. `origin` is "default", a file and line, a variable, an option, or how it was altered."""

    name: str
    value: str | None
    origin: str


@app.callback()
def _root() -> None:
    pass


@app.command("show")
def show(
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="As kbroker start: TOML, or Kafka's server.properties.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(metavar="DIR", help="As kbroker start.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="As kbroker start.")] = None,
    advertise: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="As kbroker start.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="As kbroker start.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Defaults as well.")] = False,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap", "-b", metavar="HOST:PORT", help="Ask this running broker, and tell what was altered."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what `kbroker start` with the same options, files and environment would run with.

    With --bootstrap: what a running broker has, those of its configs included that were altered since.
    """
    options = StartOptions(config, data_dir, listen, advertise, properties or [])
    given, _ = sourced(options, os.environ)
    found = local(given) if bootstrap is None else running(bootstrap, given)
    listed = [one for one in found if everything or one.origin != UNSET]
    if as_json:
        print_json([{"name": one.name, "value": one.value, "from": one.origin} for one in listed])
    else:
        print_table(("config", "value", "from"), listed)


def local(given: Given) -> list[Shown]:
    """What a broker would start with. Raises CliError for what it would not start with."""
    try:
        config = BrokerConfig.load({name: one.text for name, one in given.items()})
    except ConfigError as wrong:
        raise CliError(f"{wrong}{origins(str(wrong), given)}") from None
    return [
        Shown(entry.row.name, _value(entry.value, entry.row.sensitive), _origin(entry.row.name, given))
        for entry in describe_broker(config)
    ]


def running(bootstrap: str, given: Given) -> list[Shown]:
    """What a running broker answers. Where it was started with a value, `given` may tell from where that came."""
    from kbroker.cli.configs.requests import Resource, describe

    with admin(bootstrap) as client:
        node = _node((broker["broker_id"] for broker in client.describe_cluster()["brokers"]), given)
        resource = Resource("broker", str(node))
        configs = describe(client, [resource])[resource]
    return [
        Shown(config["name"], _value(config["value"], config["sensitive"]), _source(config, given))
        for config in configs
    ]


def _node(nodes: Iterable[int], given: Given) -> int:
    known = sorted(nodes)
    wanted = given.get("node.id") or given.get("broker.id")
    if wanted is None:
        if len(known) != 1:
            raise usage(f"the cluster has the brokers {known}: --set node.id=N chooses one")
        return known[0]
    if not wanted.text.strip().isdecimal() or int(wanted.text) not in known:
        raise CliError(f"no broker has the node.id {wanted.text}; there are {known}")
    return int(wanted.text)


def _source(config: Mapping[str, str], given: Given) -> str:
    source = config["source"]
    if source == "STATIC_BROKER_CONFIG":
        name = config["name"]
        origin = _origin(name, given)
        return origin if origin != UNSET and _same(name, config["value"], given) else STARTED_WITH
    return DYNAMIC.get(source, UNSET)


def _same(name: str, value: str | None, given: Given) -> bool:
    """Secrets are not told, so nothing speaks against them."""
    one = given.get(name) or given.get(TWINS.get(name, ""))
    if one is None or value is None:
        return one is not None
    try:
        row = find_row(name)
        return row.parse(one.text) == row.parse(value)
    except ConfigError:
        return one.text == value


def _origin(name: str, given: Given) -> str:
    """Of node.id and broker.id, which are one, either may have been given."""
    one = given.get(name) or (given.get(TWINS[name]) if name in ("node.id", "broker.id") else None)
    return UNSET if one is None else one.origin


def _value(value: str | None, sensitive: bool) -> str | None:
    return HIDDEN if sensitive and value is None else value
