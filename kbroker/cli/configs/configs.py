"""`kbroker configs`: get, set, unset, list; for topics, brokers, groups, client metrics and loggers."""

import difflib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from kbroker.cli.common.client import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin
from kbroker.cli.common.completion import complete_config_words, complete_kinds
from kbroker.cli.common.errors import CliError, usage
from kbroker.cli.common.output import print_json, print_table
from kbroker.cli.common.pager import pages
from kbroker.cli.common.values import config_changes
from kbroker.cli.configs.requests import (
    ALL_BROKERS,
    DEFAULT_SOURCE,
    SOURCE_WORDS,
    Config,
    Resource,
    alter,
    describe,
    everything,
    kind_of,
)

HIDDEN = "(hidden)"
DOC_WIDTH = 100

app = typer.Typer(
    help="Get, set, unset and list configs of topics, brokers, groups and client metrics.", no_args_is_help=True
)

Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="topic, broker, group, client-metrics or logger.",
        show_default=False,
        autocompletion=complete_kinds,
    ),
]
AllBrokers = Annotated[
    bool,
    typer.Option("--default", help="Instead of a broker's NAME: what counts for all brokers."),
]

NameAndConfigs = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME [CONFIG...]", show_default=False, autocompletion=complete_config_words),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Ask the broker, but change nothing.")]


def resource_of(kind: str, words: Sequence[str], default: bool) -> tuple[Resource, list[str]]:
    """Whose configs, and the words after its name. With --default there is no name."""
    kind = kind_of(kind)
    if default:
        if kind != "broker":
            raise usage(f"--default goes with broker, not {kind}")
        return ALL_BROKERS, list(words)
    if not words or not words[0]:
        hint = ": its number, or --default for all brokers" if kind == "broker" else ""
        raise usage(f"say which {kind}{hint}")
    return Resource(kind, words[0]), list(words[1:])


@app.command("get")
@pages
def get(
    kind: Kind,
    words: NameAndConfigs = None,
    default: AllBrokers = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="Those at their defaults too.")] = False,
    describe_: Annotated[
        bool, typer.Option("--describe", "-d", help="With type, documentation and all the values that stand behind.")
    ] = False,
    values: Annotated[bool, typer.Option("--values", help="Values only, one a line.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show configs that differ from their defaults, all of them, or those that are named."""
    resource, names = resource_of(kind, words or (), default)
    with admin(bootstrap) as client:
        configs = chosen(
            resource, describe(client, [resource], documented=describe_ or as_json)[resource], names, every
        )
    if as_json:
        print_json(configs)
    elif values:
        for config in configs:
            print(shown(config))
    elif describe_:
        print("\n\n".join(_paragraph(config) for config in configs))
    else:
        rows = [[config["name"], shown(config), _source(config["source"])] for config in configs]
        print_table(("config", "value", "source"), rows)


def chosen(resource: Resource, configs: Sequence[Config], names: Sequence[str], every: bool) -> list[Config]:
    """The named configs in the order of their names, or else all, or else those that are not at their default."""
    if not names:
        return [config for config in configs if every or config["source"] != DEFAULT_SOURCE]
    known = {config["name"]: config for config in configs}
    for missing in (name for name in names if name not in known):
        close = difflib.get_close_matches(missing, known, 1)
        raise CliError(f"{resource} has no config {missing}" + (f" (is it {close[0]}?)" if close else ""))
    return [known[name] for name in names]


def shown(config: Config) -> str:
    """A value on one line; passwords are never told."""
    if config["sensitive"]:
        return HIDDEN
    value: str | None = config["value"]
    return "" if value is None else value.replace("\n", "\\n")


def _source(source: str) -> str:
    return SOURCE_WORDS.get(source, source)


def _paragraph(config: Config) -> str:
    facts = [config["type"], f"source: {_source(config['source'])}"] + ["read-only"] * config["read_only"]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else DOC_WIDTH
    words = " ".join((config["documentation"] or "").split())
    documentation = textwrap.fill(words, max(width, 24), initial_indent="    ", subsequent_indent="    ")
    synonyms = [
        f"    {_source(synonym['source'])}: {synonym['name']}={HIDDEN if config['sensitive'] else synonym['value']}"
        for synonym in config["synonyms"]
    ]
    head = f"{_bold(config['name'])}={shown(config)}  ({', '.join(facts)})"
    return "\n".join([head, *([documentation] if documentation else []), *synonyms])


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


@app.command("set")
def set_(
    kind: Kind,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME [CONFIG=VALUE...]", show_default=False, autocompletion=complete_config_words),
    ] = None,
    default: AllBrokers = False,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="CONFIG=VALUE", help="Add to a config that is a list; repeat for more."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="CONFIG=VALUE", help="Take from a config that is a list."),
    ] = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set configs: all of them, or none when one is refused."""
    resource, texts = resource_of(kind, words or (), default)
    changes = config_changes(texts, (), append or (), subtract or ())
    if not changes:
        raise usage("nothing to set: give CONFIG=VALUE, --append or --subtract")
    with admin(bootstrap) as client:
        alter(client, resource, changes, dry_run=dry_run)
    _report(resource, "set", changes, dry_run)


@app.command("unset")
def unset(
    kind: Kind,
    words: NameAndConfigs = None,
    default: AllBrokers = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="Everything that was set for it.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Take back what was set, so that the default counts again."""
    resource, names = resource_of(kind, words or (), default)
    if bool(names) == every:
        raise usage("say what to unset: names of configs, or --all")
    with admin(bootstrap) as client:
        if every:
            names = [config["name"] for config in own(resource, describe(client, [resource])[resource])]
        changes = config_changes((), names, (), ())
        if changes:
            alter(client, resource, changes, dry_run=dry_run)
    if changes:
        _report(resource, "unset", changes, dry_run)
    else:
        print(f"{resource}: nothing is set")


def own(resource: Resource, configs: Iterable[Config]) -> list[Config]:
    """The configs that were set for this resource itself."""
    mine = {
        "topic": "DYNAMIC_TOPIC_CONFIG",
        "broker": "DYNAMIC_DEFAULT_BROKER_CONFIG" if resource == ALL_BROKERS else "DYNAMIC_BROKER_CONFIG",
        "group": "DYNAMIC_GROUP_CONFIG",
        "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
        "logger": "DYNAMIC_BROKER_LOGGER_CONFIG",
    }[resource.kind]
    return [config for config in configs if config["source"] == mine]


def _report(resource: Resource, done: str, names: Iterable[str], dry_run: bool) -> None:
    print(f"{resource}: {'could be ' if dry_run else ''}{done}: {', '.join(names)}")


@app.command("list")
@pages
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]", help="Only of topics, brokers, groups or client-metrics.", show_default=False,
            autocompletion=complete_kinds,
        ),
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:  # fmt: skip
    """List everything that was set for topics, brokers (- is all of them), groups and client metrics."""
    kinds = [kind_of(kind)] if kind is not None else ["topic", "broker", "group", "client-metrics"]
    if "logger" in kinds:
        raise usage("loggers always have a level: see them with `configs get logger NUMBER`")
    with admin(bootstrap) as client:
        found = describe(client, everything(client, kinds))
    changed = [(resource, config) for resource, configs in found.items() for config in own(resource, configs)]
    if as_json:
        print_json(
            [
                {"kind": resource.kind, "resource": resource.name or None, **_brief(config)}
                for resource, config in changed
            ]
        )
    else:
        rows = [[resource.kind, resource.name, config["name"], shown(config)] for resource, config in changed]
        print_table(("kind", "name", "config", "value"), rows)


def _brief(config: Config) -> Config:
    return {name: config[name] for name in ("name", "value", "source", "sensitive")}
