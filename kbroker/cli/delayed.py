"""`kbroker delayed`: list the pending records of topics with delayed delivery, cancel them, deliver them now."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, NamedTuple

import typer

from kbroker.cli.common.client import CLIENT_ERRORS, admin_client, error_code_text, partition_leaders
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import Cell, confirm, print_json, print_note, print_rows, print_table, watchable
from kbroker.cli.common.values import INT32, INT64, count_text, format_duration, format_timestamp, if_known
from kbroker.cli.records.formats import bytes_to_json, printable
from kbroker.client.admin import chunks, topic_configs
from kbroker.client.cluster import ClusterClient, UnknownBroker
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.requests import LEADER_ERRORS
from kbroker.client.retries import Retries
from protocol.errors import ErrorCode
from protocol.messages.k10011_delayed_records import DelayedRecord, DelayedRecordsRequest, DelayedRecordsResponse

DELAY_ENABLE = "kbroker.delay.enable"
LIST, CANCEL, DELIVER = range(3)
# The most records of a list, and offsets of a change, that a request may have.
PAGE_RECORDS, CHANGED_RECORDS = 10_000, 1000
RETRY_FOR_S = 30.0
# The leader changes, or the partition waits for its replicas.
RETRIABLE_ERRORS = LEADER_ERRORS | {ErrorCode.NOT_ENOUGH_REPLICAS}


def knows_delay(client: ClusterClient, topic: str) -> bool:
    """Return whether topics have the config of delayed delivery; true if no broker responds.

    Brokers of Apache Kafka do not have it, and close the connection at the request.
    """
    try:
        return any(DELAY_ENABLE in configs for configs in topic_configs(client, [topic]).values())
    except CLIENT_ERRORS:
        return True


class WaitingRecord(NamedTuple):
    """A pending record, and its partition."""

    partition: int
    record: DelayedRecord

    def to_json(self, include_payload: bool) -> dict[str, Any]:
        record = self.record
        fields = {
            "partition": self.partition,
            "offset": record.offset,
            "due_ms": record.due_ms,
            "timestamp_ms": record.timestamp_ms,
            **bytes_to_json("key", record.key),
            "value_size": None if record.value_size < 0 else record.value_size,
            "headers": [
                {"key": header.name.decode(errors="replace"), **bytes_to_json("value", header.value)}
                for header in record.headers
            ],
        }
        return fields | bytes_to_json("value", record.value) if include_payload else fields


class DelayedTopic:
    """A topic with delayed delivery."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._leaders = self._find_leaders()

    def _find_leaders(self) -> dict[int, int]:
        return {index: leader for (_, index), leader in partition_leaders(self._client, [self._topic]).items()}

    def partitions(self, partition: int | None) -> list[int]:
        """Return the partitions of the topic, or the one that was asked for. Raises CliError if it has none such."""
        if partition is None:
            return sorted(self._leaders)
        if partition not in self._leaders:
            raise CliError(f"topic {self._topic} has no partition {partition}: it has {len(self._leaders)}")
        return [partition]

    def counts(self, partition: int) -> DelayedRecordsResponse:
        """Return a response with the counts of a partition."""
        return self._send(partition, DelayedRecordsRequest(operation=LIST, max_records=0))

    def pending(
        self, partition: int, page_records: int, include_payload: bool = False, key: str | None = None
    ) -> Iterator[WaitingRecord]:
        """Yield the pending records of a partition, or those with a key, in the order in which they are due."""
        after_due_ms = after_offset = -1
        # The offsets of all records with the last due time: retention may move them between two pages.
        offsets: set[int] = set()
        while True:
            request = DelayedRecordsRequest(
                operation=LIST,
                after_due_ms=after_due_ms,
                after_offset=after_offset,
                max_records=min(page_records, PAGE_RECORDS),
                include_payload=include_payload,
            )
            response = self._send(partition, request)
            for record in response.records:
                if record.due_ms != after_due_ms:
                    offsets.clear()
                if record.moved_from not in offsets and (key is None or record.key == key.encode()):
                    yield WaitingRecord(partition, record)
                offsets.add(record.offset)
                after_due_ms, after_offset = record.due_ms, record.offset
            if not response.has_more or not response.records:
                return

    def change(self, operation: int, partition: int, offsets: Sequence[int]) -> Iterator[tuple[int, str | None]]:
        """Cancel or deliver records. Yields each offset, with an error text or None."""
        for some in chunks(sorted(set(offsets)), CHANGED_RECORDS):
            response = self._send(partition, DelayedRecordsRequest(operation=operation, offsets=list(some)))
            for row in response.results:
                yield row.offset, error_code_text(row.error_code, row.error_message) if row.error_code else None

    def _send(self, partition: int, request: DelayedRecordsRequest) -> DelayedRecordsResponse:
        """Send to the leader, for at most RETRY_FOR_S if that changes. Raises CliError."""
        request.topic_name, request.partition_index = self._topic, partition
        retries = Retries(self._client.on_wait, RETRY_FOR_S)
        while True:
            leader = self._leaders.get(partition, -1)
            code, message = int(ErrorCode.LEADER_NOT_AVAILABLE), None
            failure: Exception | None = None
            if leader >= 0:
                try:
                    response = self._client.request(request, DelayedRecordsResponse, leader)
                    code, message = response.error_code, response.error_message
                    if not code:
                        return response
                except (BrokerUnreachable, UnknownBroker) as error:
                    # It has died, or is no longer among the brokers that clients know.
                    if not knows_delay(self._client, self._topic):
                        raise CliError(f"{self._topic}: these brokers have no delayed delivery") from None
                    failure = error
            failure = failure or CliError(f"{self._topic}-{partition}: {error_code_text(code, message)}")
            if code not in RETRIABLE_ERRORS or not retries.again(failure):
                raise failure
            self._leaders |= self._find_leaders()


app = typer.Typer()

DEFAULT_LIMIT = 100

Topic = Annotated[str, argument("TOPIC", "Topic with delayed delivery.", complete=complete_topics)]
Partition = Annotated[int | None, option("--partition -p PARTITION", "Only this partition.", max=INT32)]
Key = Annotated[str | None, option("--key -k KEY", "Only records with this key.")]


@app.command("list")
@watchable
def list_records(
    topic: Topic,
    partition: Partition = None,
    key: Key = None,
    limit: Annotated[int, option("--limit -n N", "Show the first N records.", min=1, max=INT32)] = DEFAULT_LIMIT,
    payload: Annotated[bool, option("--payload", "Show values and all headers, too.")] = False,
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
            records = delayed.pending(index, page, payload, key)
            found += islice(records, limit + 1)
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


def _row(pending: WaitingRecord, now_ms: int, payload: bool) -> list[Cell]:
    def text(value: bytes | None) -> str:
        return "null" if value is None else printable(value)

    record = pending.record
    left_ms = record.due_ms - now_ms
    due_in = format_duration(left_ms) if left_ms >= 0 else f"-{format_duration(-left_ms)}"
    headers = " ".join(f"{text(header.name)}={text(header.value)}" for header in record.headers)
    key = None if record.key is None else text(record.key)
    row: list[Cell] = [pending.partition, record.offset, format_timestamp(record.due_ms), due_in, key, headers]
    return [*row, text(record.value)] if payload else row


@app.command("count")
@watchable
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
    columns = ("partition", "pending", "in transactions", "next due")
    cells = [[*list(row.values())[:3], if_known(format_timestamp, row["next_due_ms"])] for row in rows]
    print_rows(as_json, rows, columns, cells)


class Chosen(NamedTuple):
    """The records to cancel or to deliver."""

    topic: Topic
    partition: Partition = None
    offset: Annotated[
        list[int] | None, option("--offset -o OFFSET", "The record at this offset; needs -p; repeatable.", max=INT64)
    ] = None
    key: Annotated[str | None, option("--key -k KEY", "All pending records with this key.")] = None


@app.command("cancel")
def cancel(chosen: Chosen, yes: Yes = False, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Cancel pending records: they are never delivered. Choose them with --partition and --offset, or with --key.

    Example: kbroker delayed cancel reminders --partition 0 --offset 42

    Example: kbroker delayed cancel reminders --key account-7
    """
    _change(CANCEL, chosen, yes, as_json, bootstrap)


@app.command("deliver-now")
def deliver_now(
    chosen: Chosen, yes: Yes = False, as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Deliver pending records before they are due. Choose them with --partition and --offset, or with --key.

    Example: kbroker delayed deliver-now reminders --partition 0 --offset 42
    """
    _change(DELIVER, chosen, yes, as_json, bootstrap)


def _change(operation: int, chosen: Chosen, yes: bool, as_json: bool, bootstrap: str) -> None:
    topic, partition, offsets, key = chosen
    if bool(offsets) == (key is not None):
        raise usage_error("choose one: --offset OFFSET with --partition, or --key KEY")
    if offsets and partition is None:
        raise usage_error("--offset needs --partition")
    verb, done = ("Cancel", "cancelled") if operation == CANCEL else ("Deliver", "delivered")
    with admin_client(bootstrap) as client:
        delayed = DelayedTopic(client, topic)
        by_partition: dict[int, list[int]] = {}
        for index in delayed.partitions(partition):
            by_partition[index] = offsets or [
                pending.record.offset for pending in delayed.pending(index, PAGE_RECORDS, key=key)
            ]
        total = sum(map(len, by_partition.values()))
        if not total:
            raise CliError(f"{topic} has no pending record with key {key}")
        confirm(f"{verb} {count_text(total, 'pending record')} of {topic}?", yes)
        results = [
            {"partition": index, "offset": at, "error": error}
            for index, wanted in by_partition.items()
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
