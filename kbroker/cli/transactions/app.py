"""`kbroker transactions`: list, describe, producers; hanging ones are found and ended in transactions_hanging.py."""

import time
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, error_code_text
from kbroker.cli.common.completion import complete_topics, complete_transactional_ids
from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.formatting import format_duration, format_timestamp
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_table
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.parsing import INT32, INT64, parse_duration_ms, parse_topic_partitions
from kbroker.cli.transactions.hanging import abort, find_hanging, terminate
from kbroker.cli.transactions.requests import (
    Described,
    Filters,
    Producer,
    chosen,
    describe_producers,
    describe_transactions,
    leaders,
    list_transactions,
)

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip

app = typer.Typer()

app.command("find-hanging")(paginated(find_hanging))
app.command("abort")(abort)
app.command("terminate")(terminate)


@app.command("list")
@paginated
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only those in this state; repeat for more.")
    ] = None,
    producer_id: Annotated[
        list[int] | None,
        typer.Option("--producer-id", min=0, max=INT64, help="Only this producer's; repeat for more."),
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option("--longer-than", metavar="DURATION", help="Only those open for longer, as 15m or 1h.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Only transactional ids that match as a whole.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List transactional ids with the states of their transactions."""
    filters = Filters(
        [known_state(name) for name in state or ()],
        producer_id or (),
        None if longer_than is None else parse_duration_ms(longer_than),
        pattern,
    )
    with admin_client(bootstrap) as client:
        found = list_transactions(client, filters)
    if as_json:
        print_json([row._asdict() for row in found])
    else:
        print_table(("transactional id", "state", "producer id", "coordinator"), found)


def known_state(text: str) -> str:
    """A state as Kafka writes it."""
    for state in STATES:
        if state.lower() == text.lower():
            return state
    raise usage_error(f"--state must be one of {', '.join(STATES)}, not {text!r}")


@app.command("describe")
@paginated
def describe(
    transactional_ids: Annotated[
        list[str],
        typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False, autocompletion=complete_transactional_ids),
    ],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show what their coordinators know of transactions: producer, timeout, since when open, which partitions."""
    with admin_client(bootstrap) as client:
        found = describe_transactions(client, list(dict.fromkeys(transactional_ids)))
    now_ms = round(time.time() * 1000)
    described = [summary(row, now_ms) for row in found.values() if isinstance(row, Described)]
    for name, code in found.items():
        if isinstance(code, int):
            print_error(f"transactional id {name}: {error_code_text(code)}")
    if as_json:
        print_json(described)
    elif described:
        columns = (
            "transactional id",
            "state",
            "producer id",
            "epoch",
            "timeout",
            "open since",
            "open for",
            "partitions",
        )
        print_table(columns, [_row(row) for row in described])
    if len(described) < len(found):
        raise typer.Exit(1)


def summary(found: Described, now_ms: int) -> dict[str, Any]:
    """A transaction as JSON has it; its partitions by topic, times in milliseconds, None where none is open."""
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(found.partitions):
        partitions.setdefault(topic, []).append(partition)
    return {
        **found._asdict(),
        "duration_ms": None if found.start_ms is None else max(now_ms - found.start_ms, 0),
        "partitions": partitions,
    }


def _row(row: dict[str, Any]) -> list[Any]:
    open_since, open_for = row["start_ms"], row["duration_ms"]
    partitions = " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in row["partitions"].items())
    return [
        row["transactional_id"],
        row["state"],
        row["producer_id"],
        row["producer_epoch"],
        format_duration(row["timeout_ms"]),
        None if open_since is None else format_timestamp(open_since),
        None if open_for is None else format_duration(open_for),
        partitions,
    ]


@app.command("producers")
@paginated
def producers(
    choices: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC[:PARTITION,...]", show_default=False, autocompletion=complete_topics),
    ],
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, max=INT32, help="Ask this replica, not the leaders.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producers that partitions know, and where each has a transaction open."""
    wanted = [parse_topic_partitions(text) for text in choices]
    with admin_client(bootstrap) as client:
        known = chosen(leaders(client, list(dict.fromkeys(choice.topic for choice in wanted))), wanted)
        found = describe_producers(client, known if broker is None else dict.fromkeys(known, broker))
    if as_json:
        print_json([row._asdict() for row in found])
    else:
        print_table(PRODUCER_COLUMNS, [_producer_row(row) for row in found])


PRODUCER_COLUMNS = (
    "topic", "partition", "producer id", "epoch", "last sequence", "last time", "coordinator epoch", "open from",
)  # fmt: skip


def _producer_row(row: Producer) -> list[Any]:
    shown: list[Any] = list(row)
    if row.last_timestamp is not None:
        shown[5] = format_timestamp(row.last_timestamp)
    return shown
