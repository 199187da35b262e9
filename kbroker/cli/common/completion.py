"""What the shell offers on TAB: names that a broker knows. No broker, or a slow one: nothing, and no word of it."""

import re
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

import typer

from kbroker.cli.common.values import host_port

TIMEOUT_S = 0.5
KINDS = ("topic", "broker", "group", "client-metrics", "logger")


def complete_kinds(incomplete: str) -> list[str]:
    """Kinds of resources that have configs."""
    return _starting(KINDS, incomplete)


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics; internal ones when somebody begins to write their underscores."""
    names = _asked(ctx, lambda client: client.list_topics())
    return _starting((name for name in names if incomplete or not name.startswith("__")), incomplete)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups."""
    names = _asked(ctx, lambda client: [group["group_id"] for group in client.list_groups()])
    return _starting(names, incomplete)


def complete_transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Transactional ids."""

    def ids(client: Any) -> list[str]:
        listed = client.list_transactions().values()
        return [row.transactional_id for rows in listed for row in rows]

    return _starting(_asked(ctx, ids), incomplete)


def complete_topic_configs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic configs, as `NAME=`; the tables in this package know them without a broker."""
    from kbroker.config.rows.topic import TOPIC_CONFIGS

    return _starting((f"{name}=" for name in TOPIC_CONFIGS), incomplete)


def complete_topic_config_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topic configs by name alone."""
    return [text.removesuffix("=") for text in complete_topic_configs(ctx, incomplete)]


def complete_config_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """After `kbroker configs get|set|unset KIND`: the resource's name, then names of configs."""
    kind = str(ctx.params.get("kind") or "").lower().removesuffix("s") or "topic"
    words = ctx.params.get("words") or ()
    if words or ctx.params.get("default"):
        return _starting(_config_names(kind, "=" if ctx.info_name == "set" else ""), incomplete)
    if kind == "topic":
        return complete_topics(ctx, incomplete)
    if kind == "group":
        return complete_groups(ctx, incomplete)
    nodes = _asked(ctx, lambda client: [str(broker["broker_id"]) for broker in client.describe_cluster()["brokers"]])
    return _starting(nodes if kind in ("broker", "logger") else (), incomplete)


def rejoin_words(environ: MutableMapping[str, str]) -> None:
    """bash takes words apart at `:` and `=` (COMP_WORDBREAKS); here `--bootstrap host:9092` becomes whole again."""
    words = environ.get("COMP_WORDS", "").split("\n")
    cursor = environ.get("COMP_CWORD", "")
    if environ.get("_KBROKER_COMPLETE") != "complete_bash" or not cursor.isdecimal():
        return
    joined: list[str] = []
    place = int(cursor)
    for index, word in enumerate(words):
        breaks = re.fullmatch("[:=]+", word) is not None
        if joined and word and (breaks or re.search("[:=]$", words[index - 1])):
            joined[-1] += word
            place -= index <= int(cursor)
        else:
            joined.append(word)
    environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(place))


def _config_names(kind: str, end: str) -> list[str]:
    from kbroker.config.rows.broker import BROKER_CONFIGS
    from kbroker.config.rows.client_metrics import CLIENT_METRICS_CONFIGS
    from kbroker.config.rows.group import GROUP_CONFIGS
    from kbroker.config.rows.topic import TOPIC_CONFIGS

    tables: dict[str, Any] = {
        "topic": TOPIC_CONFIGS,
        "broker": BROKER_CONFIGS,
        "group": GROUP_CONFIGS,
        "client-metric": CLIENT_METRICS_CONFIGS,
    }
    return [name + end for name in tables.get(kind, ())]


def _starting(names: Any, incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _asked(ctx: typer.Context, question: Callable[[Any], list[str]]) -> list[str]:
    """The answer of the broker that the command line names so far, [] without one."""
    try:
        bootstrap = str(ctx.params.get("bootstrap"))
        server = bootstrap.split(",")[0].strip()
        socket.create_connection(host_port(server, "--bootstrap"), TIMEOUT_S).close()
        return question(_client(server))
    except Exception:  # a completion has nobody to tell
        return []


def _client(server: str) -> Any:
    import logging

    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
    from kafka.admin import KafkaAdminClient

    timeout_ms = round(TIMEOUT_S * 1000)
    # never closed: the process ends with the answer
    return KafkaAdminClient(
        bootstrap_servers=server,
        client_id="kbroker-cli",
        bootstrap_timeout_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
    )
