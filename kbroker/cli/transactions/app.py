"""`kbroker transactions`: list and describe transactions and producers, find and end hanging transactions."""

import time
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, error_code_text, partition_leaders, select_partitions
from kbroker.cli.common.completion import complete_topics, complete_transactional_ids
from kbroker.cli.common.errors import print_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import print_rows, watchable
from kbroker.cli.common.partitions import partition_rows, partitions_text
from kbroker.cli.common.values import (
    INT32,
    INT64,
    format_duration,
    format_timestamp,
    if_known,
    parse_choices,
    parse_duration_ms,
    parse_topic_partitions,
)
from kbroker.cli.transactions.hanging import abort, find_hanging, terminate
from kbroker.cli.transactions.requests import (
    PartitionProducer,
    describe_producers,
    describe_transaction,
    list_transactions,
)
from kbroker.client.requests import TRANSACTION
from protocol.messages.k65_describe_transactions import TransactionState
from protocol.messages.k66_list_transactions import ListTransactionsRequest

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)  # fmt: skip

app = typer.Typer()


@app.command("list")
@watchable
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
    selection = ListTransactionsRequest(
        state_filters=parse_choices(state or (), STATES, "--state"),
        producer_id_filters=producer_id or [],
        duration_filter=-1 if longer_than is None else parse_duration_ms(longer_than),
        transactional_id_pattern=pattern,
    )
    with admin_client(bootstrap) as client:
        listings = list_transactions(client, selection)
    columns = ("transactional id", "state", "producer id", "coordinator")
    print_rows(as_json, listings, columns, [list(listing.values()) for listing in listings])


@app.command("describe")
@watchable
def describe(
    transactional_ids: Annotated[list[str], argument("TRANSACTIONAL_ID...", complete=complete_transactional_ids)],
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the producer, timeout, start time and partitions of transactions, as their coordinators know them."""
    ids = list(dict.fromkeys(transactional_ids))
    descriptions = []
    with admin_client(bootstrap) as client:
        for transactional_id in ids:
            row = describe_transaction(client, transactional_id)
            if row.error_code:
                print_error(f"transactional id {transactional_id}: {error_code_text(row.error_code)}")
            else:
                coordinator = client.find_coordinator(transactional_id, TRANSACTION).node_id
                descriptions.append(description_json(row, coordinator, round(time.time() * 1000)))
    if as_json or descriptions:
        print_rows(as_json, descriptions, TRANSACTION_COLUMNS, [_transaction_row(row) for row in descriptions])
    if len(descriptions) < len(ids):
        raise typer.Exit(1)


TRANSACTION_COLUMNS = (
    "transactional id", "state", "producer id", "epoch", "timeout", "open since", "open for", "partitions"
)  # fmt: skip


def description_json(row: TransactionState, coordinator: int, now_ms: int) -> dict[str, Any]:
    """Return the JSON of a transaction: times in milliseconds, None if none is open."""
    start_ms = row.transaction_start_time_ms if row.transaction_start_time_ms >= 0 else None
    return {
        "transactional_id": row.transactional_id,
        "state": row.transaction_state,
        "producer_id": row.producer_id,
        "producer_epoch": row.producer_epoch,
        "timeout_ms": row.transaction_timeout_ms,
        "start_ms": start_ms,
        "partitions": partition_rows({topic.topic: topic.partitions for topic in row.topics}),
        "coordinator": coordinator,
        "duration_ms": None if start_ms is None else max(now_ms - start_ms, 0),
    }


def _transaction_row(row: dict[str, Any]) -> list[Any]:
    *numbers, timeout_ms, start_ms, partitions, _, duration_ms = row.values()
    times = [if_known(format_timestamp, start_ms), if_known(format_duration, duration_ms)]
    return [*numbers, format_duration(timeout_ms), *times, partitions_text(partitions)]


PRODUCER_COLUMNS = (
    "topic", "partition", "producer id", "epoch", "last sequence", "last time", "coordinator epoch", "start offset",
)  # fmt: skip


@app.command("producers")
@watchable
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
    return [*row[:5], if_known(format_timestamp, row.last_timestamp_ms), *row[6:]]


app.command("find-hanging")(watchable(find_hanging))
app.command("abort")(abort)
app.command("terminate")(terminate)
