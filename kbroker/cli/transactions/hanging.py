"""`kbroker transactions` find-hanging, abort, terminate.

A transaction hangs when a partition has it open and its coordinator does not know of that: nobody will ever end it,
and readers with isolation.level=read_committed wait before it. An abort marker, written into the partition itself,
ends it.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, error_code_text
from kbroker.cli.common.completion import complete_topics, complete_transactional_ids
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.formatting import format_duration, format_timestamp
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_note, print_table
from kbroker.cli.common.parsing import INT16, INT32, INT64, TopicPartitions, parse_duration_ms, parse_topic_partitions
from kbroker.cli.transactions.requests import (
    Described,
    Filters,
    Partition,
    Producer,
    chosen,
    describe_producers,
    describe_transactions,
    fence,
    leaders,
    list_transactions,
    write_abort,
)

COLUMNS = ("topic", "partition", "producer id", "epoch", "coordinator epoch", "open from", "last time", "silent for")


def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:P,...]",
            help="Look only here; repeat for more.",
            show_default="all topics",
            autocompletion=complete_topics,
        ),
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, max=INT32, help="Only partitions that this broker leads.")
    ] = None,
    max_transaction_timeout: Annotated[
        str,
        typer.Option(metavar="DURATION", help="No transaction of the cluster may take longer."),
    ] = "15m",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that a partition has open and no coordinator knows of.

    Looked at are those whose producer has been silent for longer than --max-transaction-timeout.
    """
    limit_ms = parse_duration_ms(max_transaction_timeout)
    choices = [parse_topic_partitions(text) for text in topic or ()]
    with admin_client(bootstrap) as client:
        found = _hanging(client, choices, broker, limit_ms)
    now_ms = round(time.time() * 1000)
    if as_json:
        print_json([{**row._asdict(), "silent_ms": _silent_ms(row, now_ms)} for row in found])
        return
    print_table(COLUMNS, [_row(row, now_ms) for row in found])
    if found:
        print_note(
            "end one with: kbroker transactions abort TOPIC:PARTITION --start-offset OFFSET (where it is open from)"
        )


def _row(row: Producer, now_ms: int) -> list[Any]:
    last = row.last_timestamp
    silent_ms = _silent_ms(row, now_ms)
    return [
        row.topic,
        row.partition,
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch,
        row.start_offset,
        None if last is None else format_timestamp(last),
        None if silent_ms is None else format_duration(silent_ms),
    ]


def _silent_ms(row: Producer, now_ms: int) -> int | None:
    return None if row.last_timestamp is None else max(now_ms - row.last_timestamp, 0)


def _hanging(client: Any, choices: Sequence[TopicPartitions], broker: int | None, limit_ms: int) -> list[Producer]:
    known = leaders(client, sorted({choice.topic for choice in choices}) or None)
    known = {tp: node for tp, node in chosen(known, choices).items() if node >= 0 and broker in (None, node)}
    before_ms = round(time.time() * 1000) - limit_ms
    open_ = open_before(describe_producers(client, known), before_ms)
    if not open_:
        return []
    ids = sorted({row.producer_id for row in open_})
    listed = list_transactions(client, Filters(producer_ids=ids))
    described = describe_transactions(client, [row.transactional_id for row in listed])
    return unknown_to_coordinators(open_, (row for row in described.values() if isinstance(row, Described)))


def open_before(producers: Iterable[Producer], before_ms: int) -> list[Producer]:
    """Those with an open transaction whose last record is older."""
    return [row for row in producers if row.start_offset is not None and (row.last_timestamp or 0) < before_ms]


def unknown_to_coordinators(producers: Iterable[Producer], transactions: Iterable[Described]) -> list[Producer]:
    """Those whose partition is in no transaction of that producer, as the coordinators have it."""
    known = {(row.producer_id, partition) for row in transactions for partition in row.partitions}
    return [row for row in producers if (row.producer_id, (row.topic, row.partition)) not in known]


def abort(
    partition: Annotated[
        str, typer.Argument(metavar="TOPIC:PARTITION", show_default=False, autocompletion=complete_topics)
    ],
    start_offset: Annotated[
        int | None, typer.Option(min=0, max=INT64, help="Where it is open from, as find-hanging and producers tell.")
    ] = None,
    producer_id: Annotated[int | None, typer.Option(min=0, max=INT64, help="Instead: its producer, ...")] = None,
    producer_epoch: Annotated[int | None, typer.Option(min=0, max=INT16, help="... its epoch, ...")] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option(min=-1, max=INT32, help="... and the epoch of its coordinator (-1: none yet).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """End a hanging transaction: write an abort marker into the one partition that has it open."""
    choice = parse_topic_partitions(partition)
    if choice.partitions is None or len(choice.partitions) != 1:
        raise usage_error(f"expected TOPIC:PARTITION, not {partition!r}")
    tp = (choice.topic, choice.partitions[0])
    given = [number for number in (producer_id, producer_epoch, coordinator_epoch) if number is not None]
    if len(given) != (3 if start_offset is None else 0):
        raise usage_error("say --start-offset, or else --producer-id, --producer-epoch and --coordinator-epoch")
    with admin_client(bootstrap) as client:
        node = chosen(leaders(client, [tp[0]]), [choice])[tp]
        if start_offset is not None:
            marker = marker_of(describe_producers(client, {tp: node}), tp, start_offset)
        else:
            marker = (given[0], given[1], max(given[2], 0))
        confirm(f"Abort what producer {marker[0]} has open in {tp[0]}-{tp[1]}?", yes)
        if code := write_abort(client, node, tp, marker):
            raise CliError(f"{tp[0]}-{tp[1]}, producer {marker[0]}: {error_code_text(code)}")
    print(f"{tp[0]}-{tp[1]}: aborted the transaction of producer {marker[0]}, epoch {marker[1]}")


def marker_of(producers: Iterable[Producer], partition: Partition, start_offset: int) -> tuple[int, int, int]:
    """Producer id, its epoch and coordinator epoch of the marker that ends the transaction which begins there.

    No coordinator has written for a producer whose first transaction hangs; any epoch will do then.
    """
    for row in producers:
        if row.start_offset == start_offset:
            return row.producer_id, row.producer_epoch, row.coordinator_epoch or 0
    raise CliError(f"{partition[0]}-{partition[1]} has no open transaction that begins at offset {start_offset}")


def terminate(
    transactional_id: Annotated[
        str, typer.Argument(metavar="TRANSACTIONAL_ID", show_default=False, autocompletion=complete_transactional_ids)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Fence a producer: its open transaction is aborted, and it cannot begin another."""
    with admin_client(bootstrap) as client:
        found = describe_transactions(client, [transactional_id])[transactional_id]
        if isinstance(found, int):
            raise CliError(f"transactional id {transactional_id}: {error_code_text(found)}")
        confirm(f"Fence the producer of {transactional_id} ({found.state})?", yes)
        fence(client, transactional_id, found.timeout_ms)
    print(f"{transactional_id}: its producer is fenced{', its transaction aborted' if found.start_ms else ''}")
