"""Shell completion: names that a broker knows. Without a broker, or with a slow one, nothing is offered."""

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient

TIMEOUT_S = 0.5
KINDS = ("topic", "broker", "group", "client-metrics", "logger")


def complete_kinds(incomplete: str) -> list[str]:
    """Complete kinds of resources that have configs."""
    return _with_prefix(KINDS, incomplete)


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete topics; internal ones only after the first character."""

    def query(client: "ClusterClient") -> list[str]:
        return [topic.name or "" for topic in client.metadata(None).topics]

    topics = _query(ctx, query)
    return _with_prefix((name for name in topics if incomplete or not name.startswith("__")), incomplete)


def complete_brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete broker ids."""
    from kbroker.client.admin import describe_cluster

    def query(client: "ClusterClient") -> list[str]:
        return [str(broker.broker_id) for broker in describe_cluster(client).brokers]

    return _with_prefix(_query(ctx, query), incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete group ids."""
    from kbroker.client.groups import list_groups

    return _with_prefix(_query(ctx, lambda client: [group.group_id for group in list_groups(client)]), incomplete)


def complete_transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete transactional ids."""
    from kbroker.cli.transactions.requests import list_transactions
    from protocol.messages.k66_list_transactions import ListTransactionsRequest

    def query(client: "ClusterClient") -> list[str]:
        return [row["transactional_id"] for row in list_transactions(client, ListTransactionsRequest())]

    return _with_prefix(_query(ctx, query), incomplete)


def complete_topic_configs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete topic configs as `NAME=`, without asking a broker."""
    from kbroker.config.definitions.topic import TOPIC_CONFIGS

    return _with_prefix((f"{name}=" for name in TOPIC_CONFIGS), incomplete)


def complete_topic_config_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete names of topic configs."""
    return [text.removesuffix("=") for text in complete_topic_configs(ctx, incomplete)]


def complete_config_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete what follows `kbroker configs get|set|unset KIND`: the resource's name, then names of configs."""
    kind = str(ctx.params.get("kind") or "").lower().removesuffix("s") or "topic"
    words = ctx.params.get("words") or ()
    if words or ctx.params.get("default"):
        return _with_prefix(_config_names(kind, "=" if ctx.info_name == "set" else ""), incomplete)
    if kind == "topic":
        return complete_topics(ctx, incomplete)
    if kind == "group":
        return complete_groups(ctx, incomplete)
    return complete_brokers(ctx, incomplete) if kind in ("broker", "logger") else []


def rejoin_words(environ: MutableMapping[str, str]) -> None:
    """Rejoin words that bash has split at `:` and `=` (COMP_WORDBREAKS), such as `--bootstrap host:9092`."""
    words = environ.get("COMP_WORDS", "").split("\n")
    cursor = environ.get("COMP_CWORD", "")
    if environ.get("_KBROKER_COMPLETE") != "complete_bash" or not cursor.isdecimal():
        return
    joined: list[str] = []
    joined_cursor = int(cursor)
    for index, word in enumerate(words):
        is_break = re.fullmatch("[:=]+", word) is not None
        if joined and word and (is_break or re.search("[:=]$", words[index - 1])):
            joined[-1] += word
            joined_cursor -= index <= int(cursor)
        else:
            joined.append(word)
    environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(joined_cursor))


def _config_names(kind: str, suffix: str) -> list[str]:
    from kbroker.config.definitions.broker import BROKER_CONFIGS
    from kbroker.config.definitions.client_metrics import CLIENT_METRICS_CONFIGS
    from kbroker.config.definitions.group import GROUP_CONFIGS
    from kbroker.config.definitions.topic import TOPIC_CONFIGS

    configs: dict[str, Mapping[str, Any]] = {
        "topic": TOPIC_CONFIGS,
        "broker": BROKER_CONFIGS,
        "group": GROUP_CONFIGS,
        "client-metric": CLIENT_METRICS_CONFIGS,
    }
    return [name + suffix for name in configs.get(kind, ())]


def _with_prefix(names: Iterable[str], prefix: str) -> list[str]:
    return sorted(name for name in names if name.startswith(prefix))


def _query(ctx: typer.Context, query: "Callable[[ClusterClient], list[str]]") -> list[str]:
    """Run a query on the broker that the incomplete command line names; [] if it fails in any way."""
    try:
        from kbroker.cli.common.client import CLIENT_ID, parse_bootstrap
        from kbroker.client.cluster import ClusterClient

        server = parse_bootstrap(str(ctx.params.get("bootstrap")))[:1]
        with ClusterClient(server, client_id=CLIENT_ID, timeout_s=TIMEOUT_S) as client:
            return query(client)
    except Exception:  # an error message would end up in the user's half-written command line
        return []
