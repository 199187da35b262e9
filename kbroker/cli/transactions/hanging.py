"""`kbroker transactions find-hanging`, `abort` and `terminate`.

No coordinator will ever end a hanging transaction (see requests.py), and consumers with isolation.level=read_committed
stop before it. An abort marker that is written to the partition ends it.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from kbroker.cli.common.client import admin_client, partition_leaders, raise_error, select_partitions
from kbroker.cli.common.completion import complete_topics, complete_transactional_ids
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import confirm, print_json, print_note, print_table
from kbroker.cli.common.values import (
    INT16,
    INT32,
    INT64,
    TopicPartitions,
    format_duration,
    format_timestamp,
    if_known,
    parse_duration_ms,
    parse_topic_partitions,
)
from kbroker.cli.transactions.requests import (
    PartitionProducer,
    describe_producers,
    describe_transaction,
    list_transactions,
    unknown_to_coordinators,
    with_old_transaction,
)
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import TRANSACTION, Partition, partition_text
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.messages.k65_describe_transactions import TransactionState
from protocol.messages.k66_list_transactions import ListTransactionsRequest

COLUMNS = ("topic", "partition", "producer id", "epoch", "coordinator epoch", "start offset", "last time", "idle for")


def find_hanging(
    topic: Annotated[
        list[str] | None,
        option(
            "--topic -t TOPIC[:PARTITION,...]",
            "Search this topic only, or some of its partitions; repeatable.",
            show_default="all topics",
            complete=complete_topics,
        ),
    ] = None,
    broker: Annotated[
        int | None, option("--broker ID", "Search only partitions that this broker leads.", max=INT32)
    ] = None,
    max_transaction_timeout: Annotated[
        str, option("DURATION", "Longest transaction timeout that the cluster allows.")
    ] = "15m",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Find transactions that are open in a partition and unknown to their coordinator.

    Only producers that have been idle for longer than --max-transaction-timeout are examined.
    """
    limit_ms = parse_duration_ms(max_transaction_timeout)
    selections = [parse_topic_partitions(text) for text in topic or ()]
    with admin_client(bootstrap) as client:
        hanging = hanging_transactions(client, limit_ms, selections, broker)
    now_ms = round(time.time() * 1000)
    if as_json:
        print_json([{**row._asdict(), "idle_ms": _idle_ms(row, now_ms)} for row in hanging])
        return
    print_table(COLUMNS, [_row(row, now_ms) for row in hanging])
    if hanging:
        print_note("end one with: kbroker transactions abort TOPIC:PARTITION --start-offset OFFSET")


def _row(row: PartitionProducer, now_ms: int) -> list[Any]:
    idle_ms = _idle_ms(row, now_ms)
    times = [if_known(format_timestamp, row.last_timestamp_ms), if_known(format_duration, idle_ms)]
    return [*row[:4], row.coordinator_epoch, row.start_offset, *times]


def _idle_ms(row: PartitionProducer, now_ms: int) -> int | None:
    return None if row.last_timestamp_ms is None else max(now_ms - row.last_timestamp_ms, 0)


def hanging_transactions(
    client: ClusterClient, limit_ms: int, selections: Sequence[TopicPartitions] = (), broker: int | None = None
) -> list[PartitionProducer]:
    """Return the producers with transactions that no coordinator knows, idle for more than `limit_ms`.

    Searches all partitions by default, or the selected ones, or those that one broker leads.
    """
    leaders = partition_leaders(client, sorted({selection.topic for selection in selections}) or None)
    partitions = {
        partition: leader
        for partition, leader in select_partitions(leaders, selections).items()
        if leader >= 0 and broker in (None, leader)
    }
    before_ms = round(time.time() * 1000) - limit_ms
    candidates = with_old_transaction(describe_producers(client, partitions), before_ms)
    if not candidates:
        return []
    producer_ids = sorted({row.producer_id for row in candidates})
    listings = list_transactions(client, ListTransactionsRequest(producer_id_filters=producer_ids))
    rows = [describe_transaction(client, listing["transactional_id"]) for listing in listings]
    return unknown_to_coordinators(candidates, rows)


def abort(
    partition: Annotated[str, argument("TOPIC:PARTITION", complete=complete_topics)],
    start_offset: Annotated[
        int | None, option("OFFSET", "First offset of the transaction, from find-hanging or producers.", max=INT64)
    ] = None,
    producer_id: Annotated[
        int | None, option("ID", "Producer id, instead of --start-offset; requires both epochs.", max=INT64)
    ] = None,
    producer_epoch: Annotated[int | None, option("EPOCH", "Producer epoch, with --producer-id.", max=INT16)] = None,
    coordinator_epoch: Annotated[
        int | None,
        option("EPOCH", "Coordinator epoch, with --producer-id; -1 if there is none yet.", min=-1, max=INT32),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction by writing an abort marker into the partition.

    Example: kbroker transactions abort orders:3 --start-offset 4711
    """
    selection = parse_topic_partitions(partition)
    if selection.partitions is None or len(selection.partitions) != 1:
        raise usage_error(f"expected TOPIC:PARTITION, not {partition!r}")
    tp = (selection.topic, selection.partitions[0])
    numbers = [number for number in (producer_id, producer_epoch, coordinator_epoch) if number is not None]
    if len(numbers) != (3 if start_offset is None else 0):
        raise usage_error("use --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch")
    with admin_client(bootstrap) as client:
        leader = select_partitions(partition_leaders(client, [tp[0]]), [selection])[tp]
        if start_offset is not None:
            marker = abort_marker(describe_producers(client, {tp: leader}), tp, start_offset)
        else:
            marker = WritableTxnMarker(
                producer_id=numbers[0], producer_epoch=numbers[1], coordinator_epoch=max(numbers[2], 0)
            )
        confirm(f"Abort the open transaction of producer {marker.producer_id} in {partition_text(tp)}?", yes)
        write_marker(client, tp, leader, marker)
    print(
        f"{partition_text(tp)}: aborted the transaction of producer {marker.producer_id}, epoch {marker.producer_epoch}"
    )


def write_marker(client: ClusterClient, partition: Partition, leader: int, marker: WritableTxnMarker) -> None:
    """Abort the transaction of the marker's producer in a partition. Raises CliError."""
    marker.topics = [WritableTxnMarkerTopic(name=partition[0], partition_indexes=[partition[1]])]
    response = client.request(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, leader)
    code = response.markers[0].topics[0].partitions[0].error_code
    raise_error(code, subject=f"{partition_text(partition)}, producer {marker.producer_id}: ")


def abort_marker(producers: Iterable[PartitionProducer], partition: Partition, start_offset: int) -> WritableTxnMarker:
    """Return the marker, without a partition, that aborts the transaction that begins at `start_offset`.

    If the producer's first transaction hangs there is no coordinator epoch yet; brokers then accept any.
    """
    for row in producers:
        if row.start_offset == start_offset:
            return WritableTxnMarker(
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                coordinator_epoch=row.coordinator_epoch or 0,
            )
    raise CliError(f"{partition_text(partition)} has no open transaction that begins at offset {start_offset}")


def terminate(
    transactional_id: Annotated[str, argument("TRANSACTIONAL_ID", complete=complete_transactional_ids)],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Fence a producer: abort its open transaction, and prevent it from beginning another."""
    with admin_client(bootstrap) as client:
        found = describe_transaction(client, transactional_id)
        raise_error(found.error_code, subject=f"transactional id {transactional_id}: ")
        confirm(f"Fence the producer of {transactional_id} ({found.transaction_state})?", yes)
        fence_producer(client, found)
    is_open = found.transaction_start_time_ms > 0
    print(f"{transactional_id}: producer fenced{', transaction aborted' if is_open else ''}")


def fence_producer(client: ClusterClient, transaction: TransactionState) -> None:
    """Abort the open transaction of a producer, which can begin no other. Raises CliError.

    As a new producer does, until no transaction is being completed.
    """
    id_ = transaction.transactional_id
    request = InitProducerIdRequest(transactional_id=id_, transaction_timeout_ms=transaction.transaction_timeout_ms)
    response = client.coordinated(
        id_, request, InitProducerIdResponse, lambda response: response.error_code, TRANSACTION
    )
    raise_error(response.error_code, subject=f"transactional id {id_}: ")
