"""`kbroker transactions`: list and describe transactions and producers, find and end hanging transactions."""

import time
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, error_code_text, partition_leaders, select_partitions
from kbroker.cli.common.completion import complete_topics, complete_transactional_ids
from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import paginated, print_json, print_rows, print_table
from kbroker.cli.common.values import (
    INT32,
    INT64,
    format_duration,
    format_timestamp,
    parse_duration_ms,
    parse_topic_partitions,
)
from kbroker.cli.transactions.hanging import abort, find_hanging, terminate
from kbroker.cli.transactions.requests import (
    PartitionProducer,
    TransactionDescription,
    TransactionFilter,
    describe_producers,
    describe_transactions,
    list_transactions,
)

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip

app = typer.Typer()


@app.command("list")
@paginated
def list_(
    state: Annotated[
        list[str] | None, option("--state STATE", "List transactions in this state only; repeatable.")
    ] = None,
    producer_id: Annotated[
        list[int] | None, option("--producer-id ID", "List this producer's transactions only; repeatable.", max=INT64)
    ] = None,
    longer_than: Annotated[
        str | None, option("--longer-than DURATION", "List transactions open for longer, e.g. 15m or 1h.")
    ] = None,
    pattern: Annotated[
        str | None, option("--pattern REGEX", "List transactional ids that match this RE2 pattern entirely.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List transactional ids with the states of their transactions."""
    selection = TransactionFilter(
        [parse_state(name) for name in state or ()],
        producer_id or (),
        None if longer_than is None else parse_duration_ms(longer_than),
        pattern,
    )
    with admin_client(bootstrap) as client:
        listings = list_transactions(client, selection)
    columns = ("transactional id", "state", "producer id", "coordinator")
    print_rows(as_json, [listing._asdict() for listing in listings], columns, listings)


def parse_state(text: str) -> str:
    """Parse the name of a state, in any case."""
    for state in STATES:
        if state.lower() == text.lower():
            return state
    raise usage_error(f"--state must be one of {', '.join(STATES)}, not {text!r}")


@app.command("describe")
@paginated
def describe(
    transactional_ids: Annotated[list[str], argument("TRANSACTIONAL_ID...", complete=complete_transactional_ids)],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producer, timeout, start time and partitions of transactions, as their coordinators know them."""
    with admin_client(bootstrap) as client:
        results = describe_transactions(client, list(dict.fromkeys(transactional_ids)))
    now_ms = round(time.time() * 1000)
    descriptions = [
        description_json(result, now_ms) for result in results.values() if isinstance(result, TransactionDescription)
    ]
    for transactional_id, result in results.items():
        if isinstance(result, int):
            print_error(f"transactional id {transactional_id}: {error_code_text(result)}")
    if as_json:
        print_json(descriptions)
    elif descriptions:
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
        print_table(columns, [_description_row(description) for description in descriptions])
    if len(descriptions) < len(results):
        raise typer.Exit(1)


def description_json(description: TransactionDescription, now_ms: int) -> dict[str, Any]:
    """Return the JSON of a transaction: partitions by topic, times in milliseconds, None if none is open."""
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(description.partitions):
        partitions.setdefault(topic, []).append(partition)
    return {
        **description._asdict(),
        "duration_ms": None if description.start_ms is None else max(now_ms - description.start_ms, 0),
        "partitions": partitions,
    }


def _description_row(row: dict[str, Any]) -> list[Any]:
    start_ms, duration_ms = row["start_ms"], row["duration_ms"]
    partitions = " ".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in row["partitions"].items())
    return [
        row["transactional_id"],
        row["state"],
        row["producer_id"],
        row["producer_epoch"],
        format_duration(row["timeout_ms"]),
        None if start_ms is None else format_timestamp(start_ms),
        None if duration_ms is None else format_duration(duration_ms),
        partitions,
    ]


PRODUCER_COLUMNS = (
    "topic", "partition", "producer id", "epoch", "last sequence", "last time", "coordinator epoch", "start offset",
)  # fmt: skip


@app.command("producers")
@paginated
def producers(
    topics: Annotated[list[str], argument("TOPIC[:PARTITION,...]...", complete=complete_topics)],
    broker: Annotated[
        int | None, option("--broker ID", "Send the request to this broker instead of the leaders.", max=INT32)
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producers of partitions, with the first offset of an open transaction."""
    selections = [parse_topic_partitions(text) for text in topics]
    with admin_client(bootstrap) as client:
        leaders = partition_leaders(client, list(dict.fromkeys(selection.topic for selection in selections)))
        selected = select_partitions(leaders, selections)
        rows = describe_producers(client, selected if broker is None else dict.fromkeys(selected, broker))
    print_rows(as_json, [row._asdict() for row in rows], PRODUCER_COLUMNS, map(_producer_row, rows))


def _producer_row(row: PartitionProducer) -> list[Any]:
    timestamp = None if row.last_timestamp is None else format_timestamp(row.last_timestamp)
    return [*row[:5], timestamp, *row[6:]]


app.command("find-hanging")(paginated(find_hanging))
app.command("abort")(abort)
app.command("terminate")(terminate)
