"""`kbroker delayed`: list the pending records of topics with delayed delivery, cancel them, deliver them now."""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import typer

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.formatting import count_text, format_duration, format_timestamp
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes
from kbroker.cli.common.output import Cell, print_json, print_note, print_table
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.parsing import INT32, INT64
from kbroker.cli.delayed.requests import CANCEL, DELIVER, PAGE_RECORDS, DelayedTopic, WaitingRecord
from kbroker.cli.records.formats import printable

app = typer.Typer()

DEFAULT_LIMIT = 100

Topic = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", show_default=False, autocompletion=complete_topics, help="Topic with delayed delivery."
    ),
]
Partition = Annotated[
    int | None, typer.Option("--partition", "-p", metavar="PARTITION", min=0, max=INT32, help="Only this partition.")
]
Offset = Annotated[
    list[int] | None,
    typer.Option(
        "--offset", "-o", metavar="OFFSET", min=0, max=INT64, help="The record at this offset; needs -p; repeatable."
    ),
]
Key = Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Only records with this key.")]
OfKey = Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="All pending records with this key.")]


@app.command("list")
@paginated
def list_records(
    topic: Topic,
    partition: Partition = None,
    key: Key = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=1, max=INT32, help="Show the first N records.")
    ] = DEFAULT_LIMIT,
    payload: Annotated[bool, typer.Option("--payload", help="Show values and all headers, too.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List pending records, those that are due next first. DUE_IN is negative for overdue ones.

    Records of open transactions are not listed; kbroker delayed count has their number.

    Example: kbroker delayed list reminders --key account-7
    """
    with admin_client(bootstrap) as client:
        delayed = DelayedTopic(client, topic)
        found: list[WaitingRecord] = []
        for index in delayed.partitions(partition):
            # One more than is shown, which says that there are others.
            page = PAGE_RECORDS if key is not None else limit + 1
            records = delayed.pending(index, page, payload)
            found += islice((record for record in records if _has_key(record, key)), limit + 1)
    found.sort(key=lambda pending: (pending.record.due_ms, pending.partition, pending.record.offset))
    shown = found[:limit]
    if as_json:
        print_json([pending.to_json(payload) for pending in shown])
        return
    now_ms = round(time.time() * 1000)
    columns = ["partition", "offset", "due", "due in", "key", "headers", *(["value"] if payload else [])]
    print_table(columns, [_row(pending, now_ms, payload) for pending in shown])
    if len(found) > limit:
        print_note(f"the first {limit} records; --limit N shows more")


def _has_key(pending: WaitingRecord, key: str | None) -> bool:
    return key is None or pending.record.key == key.encode()


def _row(pending: WaitingRecord, now_ms: int, payload: bool) -> list[Cell]:
    record = pending.record
    left_ms = record.due_ms - now_ms
    due_in = format_duration(left_ms) if left_ms >= 0 else f"-{format_duration(-left_ms)}"
    headers = " ".join(f"{_text(header.name)}={_text(header.value)}" for header in record.headers)
    key = None if record.key is None else _text(record.key)
    row: list[Cell] = [pending.partition, record.offset, format_timestamp(record.due_ms), due_in, key, headers]
    return [*row, _text(record.value)] if payload else row


def _text(value: bytes | None) -> str:
    return "null" if value is None else printable(value)


@app.command("count")
@paginated
def count(
    topic: Topic, partition: Partition = None, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Count pending records. Those of open transactions, which are not delivered before the commit, are apart."""
    with admin_client(bootstrap) as client:
        delayed = DelayedTopic(client, topic)
        counts = {index: delayed.counts(index) for index in delayed.partitions(partition)}
    rows = [
        {
            "partition": index,
            "pending": response.pending_count,
            "in_transactions": response.open_transaction_count,
            "next_due_ms": None if response.first_due_ms < 0 else response.first_due_ms,
        }
        for index, response in counts.items()
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("partition", "pending", "in transactions", "next due")
    print_table(columns, [[*list(row.values())[:3], _time(row["next_due_ms"])] for row in rows])


def _time(due_ms: int | None) -> str | None:
    return None if due_ms is None else format_timestamp(due_ms)


@app.command("cancel")
def cancel(
    topic: Topic,
    partition: Partition = None,
    offset: Offset = None,
    key: OfKey = None,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Cancel pending records: they are never delivered. Choose them with --partition and --offset, or with --key.

    Example: kbroker delayed cancel reminders --partition 0 --offset 42

    Example: kbroker delayed cancel reminders --key account-7
    """
    _change(CANCEL, topic, partition, offset or [], key, yes, as_json, bootstrap)


@app.command("deliver-now")
def deliver_now(
    topic: Topic,
    partition: Partition = None,
    offset: Offset = None,
    key: OfKey = None,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Deliver pending records before they are due. Choose them with --partition and --offset, or with --key.

    Example: kbroker delayed deliver-now reminders --partition 0 --offset 42
    """
    _change(DELIVER, topic, partition, offset or [], key, yes, as_json, bootstrap)


def _change(
    operation: int,
    topic: str,
    partition: int | None,
    offsets: Sequence[int],
    key: str | None,
    yes: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    if bool(offsets) == (key is not None):
        raise usage_error("choose one: --offset OFFSET with --partition, or --key KEY")
    if offsets and partition is None:
        raise usage_error("--offset needs --partition")
    verb, done = ("Cancel", "cancelled") if operation == CANCEL else ("Deliver", "delivered")
    with admin_client(bootstrap) as client:
        delayed = DelayedTopic(client, topic)
        chosen: dict[int, list[int]] = {}
        for index in delayed.partitions(partition):
            chosen[index] = list(offsets) or [
                pending.record.offset for pending in delayed.pending(index, PAGE_RECORDS) if _has_key(pending, key)
            ]
        total = sum(map(len, chosen.values()))
        if not total:
            raise CliError(f"{topic} has no pending record with key {key}")
        confirm(f"{verb} {count_text(total, 'pending record')} of {topic}?", yes)
        results = [
            {"partition": index, "offset": at, "error": error}
            for index, wanted in chosen.items()
            if wanted
            for at, error in delayed.change(operation, index, wanted)
        ]
    failed = [row for row in results if row["error"] is not None]
    if as_json:
        print_json(results)
    else:
        for row in failed:
            print_error(f"{topic}-{row['partition']}: {row['error']}")
        print(f"{topic}: {count_text(len(results) - len(failed), 'record')} {done}")
    if failed:
        raise typer.Exit(1)
