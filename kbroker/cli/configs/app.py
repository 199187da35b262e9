"""`kbroker configs`: get, set, unset and list configs of topics, brokers, groups, client metrics and loggers."""

import difflib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_config_words, complete_kinds
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import BOLD, colored, paginated, print_json, print_table
from kbroker.cli.common.values import parse_config_changes
from kbroker.cli.configs.requests import (
    ALL_BROKERS,
    DEFAULT_SOURCE,
    SOURCE_TEXTS,
    Config,
    Resource,
    alter_configs,
    describe_broker_configs,
    describe_configs,
    list_resources,
    parse_kind,
)
from kbroker.client.admin import describe_cluster

HIDDEN = "(hidden)"
DOCUMENTATION_WIDTH = 100

app = typer.Typer()

Kind = Annotated[str, argument("KIND", "topic, broker, group, client-metrics or logger.", complete=complete_kinds)]
NameAndConfigs = Annotated[
    list[str] | None,
    argument("NAME [CONFIG...]", "Name of the resource, and names of configs.", complete=complete_config_words),
]
AllBrokers = Annotated[bool, option("--default", "The defaults of all brokers, instead of a NAME.")]
DryRun = Annotated[bool, option("--dry-run", "Validate the change on the broker, but do not make it.")]


def parse_resource(kind: str, words: Sequence[str], default: bool) -> tuple[Resource, list[str]]:
    """Return the resource, and the words after its name. There is no name with --default."""
    kind = parse_kind(kind)
    if default:
        if kind != "broker":
            raise usage_error(f"--default applies to broker, not to {kind}")
        return ALL_BROKERS, list(words)
    if not words or not words[0]:
        hint = ": a broker id, or --default for all brokers" if kind == "broker" else ""
        raise usage_error(f"missing the name of the {kind}{hint}")
    return Resource(kind, words[0]), list(words[1:])


@app.command("get")
@paginated
def get(
    kind: Kind,
    words: NameAndConfigs = None,
    default: AllBrokers = False,
    include_defaults: Annotated[bool, option("--all -a", "Also show configs at their defaults.")] = False,
    documented: Annotated[
        bool, option("--describe -d", "Show types, documentation and the values that this one overrides.")
    ] = False,
    values: Annotated[bool, option("--values", "Print values only, one per line.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show configs that differ from their defaults, all configs, or the named ones.

    Example: kbroker configs get topic orders retention.ms --describe
    """
    resource, names = parse_resource(kind, words or (), default)
    with admin_client(bootstrap) as client:
        described = describe_configs(client, [resource], documented=documented or as_json)[resource]
    configs = select_configs(resource, described, names, include_defaults)
    if as_json:
        print_json(configs)
    elif values:
        for config in configs:
            print(value_text(config))
    elif documented:
        print("\n\n".join(_paragraph(config) for config in configs))
    else:
        rows = [[config["name"], value_text(config), SOURCE_TEXTS[config["source"]]] for config in configs]
        print_table(("config", "value", "source"), rows)


def select_configs(
    resource: Resource, configs: Sequence[Config], names: Sequence[str], include_defaults: bool
) -> list[Config]:
    """Return the named configs in the order of `names`, or without names all that are not at their default."""
    if not names:
        return [config for config in configs if include_defaults or config["source"] != DEFAULT_SOURCE]
    by_name = {config["name"]: config for config in configs}
    for missing in (name for name in names if name not in by_name):
        similar = difflib.get_close_matches(missing, by_name, 1)
        raise CliError(f"{resource} has no config {missing}" + (f" (did you mean {similar[0]}?)" if similar else ""))
    return [by_name[name] for name in names]


def value_text(config: Config) -> str:
    """Return a config's value on one line; passwords are hidden."""
    if config["sensitive"]:
        return HIDDEN
    value: str | None = config["value"]
    return "" if value is None else value.replace("\n", "\\n")


def _paragraph(config: Config) -> str:
    facts = [config["type"], f"source: {SOURCE_TEXTS[config['source']]}"] + ["read-only"] * config["read_only"]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else DOCUMENTATION_WIDTH
    text = " ".join((config["documentation"] or "").split())
    documentation = textwrap.fill(text, max(width, 24), initial_indent="    ", subsequent_indent="    ")
    synonyms = [
        f"    {SOURCE_TEXTS[synonym['source']]}: "
        f"{synonym['name']}={HIDDEN if config['sensitive'] else synonym['value']}"
        for synonym in config["synonyms"]
    ]
    first_line = f"{colored(config['name'], BOLD)}={value_text(config)}  ({', '.join(facts)})"
    return "\n".join([first_line, *([documentation] if documentation else []), *synonyms])


@app.command("set")
def set_(
    kind: Kind,
    words: Annotated[
        list[str] | None,
        argument("NAME [CONFIG=VALUE...]", "Name of the resource, and configs to set.", complete=complete_config_words),
    ] = None,
    default: AllBrokers = False,
    append: Annotated[
        list[str] | None, option("--append CONFIG=VALUE", "Append to a config that is a list; repeatable.")
    ] = None,
    subtract: Annotated[
        list[str] | None, option("--subtract CONFIG=VALUE", "Remove from a config that is a list; repeatable.")
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set configs of a resource: all of them, or none if the broker rejects one.

    Example: kbroker configs set topic orders retention.ms=7d segment.bytes=64MiB

    Example: kbroker configs set broker --default log.cleaner.threads=2
    """
    resource, texts = parse_resource(kind, words or (), default)
    changes = parse_config_changes(texts, (), append or (), subtract or ())
    if not changes:
        raise usage_error("nothing to set: name CONFIG=VALUE, --append or --subtract")
    with admin_client(bootstrap) as client:
        alter_configs(client, resource, changes, dry_run=dry_run)
    _print_changed(resource, "set", changes, dry_run)


@app.command("unset")
def unset(
    kind: Kind,
    words: NameAndConfigs = None,
    default: AllBrokers = False,
    unset_all: Annotated[bool, option("--all -a", "Unset everything that is set for it.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Unset configs of a resource, which then have their defaults."""
    resource, names = parse_resource(kind, words or (), default)
    if bool(names) == unset_all:
        raise usage_error("name the configs to unset, or use --all")
    with admin_client(bootstrap) as client:
        if unset_all:
            described = describe_configs(client, [resource])[resource]
            names = [config["name"] for config in own_configs(resource, described)]
        changes = parse_config_changes((), names, (), ())
        if changes:
            alter_configs(client, resource, changes, dry_run=dry_run)
    if changes:
        _print_changed(resource, "unset", changes, dry_run)
    else:
        print(f"{resource}: nothing is set")


def own_configs(resource: Resource, configs: Iterable[Config]) -> list[Config]:
    """Return the configs that are set for this resource itself."""
    source = {
        "topic": "DYNAMIC_TOPIC_CONFIG",
        "broker": "DYNAMIC_DEFAULT_BROKER_CONFIG" if resource == ALL_BROKERS else "DYNAMIC_BROKER_CONFIG",
        "group": "DYNAMIC_GROUP_CONFIG",
        "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
        "logger": "DYNAMIC_BROKER_LOGGER_CONFIG",
    }[resource.kind]
    return [config for config in configs if config["source"] == source]


def _print_changed(resource: Resource, action: str, names: Iterable[str], dry_run: bool) -> None:
    print(f"{resource}: {'could be ' if dry_run else ''}{action}: {', '.join(names)}")


@app.command("list")
@paginated
def list_(
    kind: Annotated[
        str | None,
        argument("[KIND]", "topic, broker, group or client-metrics; without it, all of them.", complete=complete_kinds),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:  # fmt: skip
    """List every config that is set for topics, brokers, groups and client metrics.

    A broker named - stands for all brokers. What is set for one broker is known only to that broker: if one does not
    respond, the exit status is 1.
    """
    kinds = [parse_kind(kind)] if kind is not None else ["topic", "broker", "group", "client-metrics"]
    if "logger" in kinds:
        raise usage_error("loggers always have a level: show them with `kbroker configs get logger BROKER_ID`")
    with admin_client(bootstrap) as client:
        brokers = sorted(broker.broker_id for broker in describe_cluster(client).brokers) if "broker" in kinds else []
        described = describe_broker_configs(client, brokers)
        described |= describe_configs(client, list_resources(client, kinds))
    listed = [
        (resource, config) for resource, configs in described.items() for config in own_configs(resource, configs)
    ]
    if as_json:
        keys = ("name", "value", "source", "sensitive")
        print_json(
            [
                {"kind": resource.kind, "resource": resource.name or None, **{key: config[key] for key in keys}}
                for resource, config in listed
            ]
        )
    else:
        rows = [[resource.kind, resource.name, config["name"], value_text(config)] for resource, config in listed]
        print_table(("kind", "name", "config", "value"), rows)
    away = [broker for broker in brokers if Resource("broker", str(broker)) not in described]
    for broker in away:
        print_error(f"broker {broker} does not respond: what is set for it is not listed")
    if away:
        raise typer.Exit(1)
