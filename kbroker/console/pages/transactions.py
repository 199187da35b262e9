"""Transactions by state and age, and hanging ones; both can be aborted."""

from collections.abc import Sequence
from time import time
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.cli.common.client import partition_leaders, raise_error
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import partitions_text
from kbroker.cli.common.values import INT32, INT64, format_duration, parse_duration_ms
from kbroker.cli.transactions.app import description_json
from kbroker.cli.transactions.hanging import abort_marker, fence_producer, hanging_transactions, write_marker
from kbroker.cli.transactions.requests import (
    IDLE_STATES,
    PartitionProducer,
    describe_producers,
    describe_transaction,
)
from kbroker.client.admin import chunks
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition
from kbroker.console.rendering import CONFIRMED, confirmation, console, integer, iso_time, page, read_form, see_other
from protocol.messages.k65_describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

TIMEOUT_S = 5.0
MAX_IDS = 200  # per request
# The most transactions that a page shows.
MAX_SHOWN = 1000
# The longest timeout that a cluster allows its transactions by default (transaction.max.timeout.ms).
DEFAULT_IDLE = "15m"


class Transactions(NamedTuple):
    """`shown`: see description_json, open ones first, the oldest of them first. `total`: of all that are known."""

    shown: Sequence[dict[str, Any]]
    open: int
    total: int


def read_transactions(cluster: ClusterClient) -> Transactions:
    """Return what all coordinators know that respond in time. The broker that lists an id is its coordinator."""
    listing = [(broker, ListTransactionsRequest()) for broker in cluster.broker_ids()]
    listed = [
        (broker, row)
        for broker, response in cluster.request_all(listing, ListTransactionsResponse, TIMEOUT_S)
        for row in response.transaction_states
    ]
    listed.sort(key=lambda each: (each[1].transaction_state in IDLE_STATES, each[1].transactional_id))
    is_open = [row.transaction_state not in IDLE_STATES for _, row in listed]
    by_broker: dict[int, list[str]] = {}
    for broker, row in listed[: max(MAX_SHOWN, sum(is_open))]:
        by_broker.setdefault(broker, []).append(row.transactional_id)
    requests = [
        (broker, DescribeTransactionsRequest(transactional_ids=list(ids)))
        for broker, of_broker in by_broker.items()
        for ids in chunks(of_broker, MAX_IDS)
    ]
    now_ms = round(time() * 1000)
    found = [
        description_json(row, broker, now_ms)
        for broker, response in cluster.request_all(requests, DescribeTransactionsResponse, TIMEOUT_S)
        for row in response.transaction_states
        if not row.error_code
    ]
    found.sort(key=lambda row: (row["state"] in IDLE_STATES, -(row["duration_ms"] or 0), row["transactional_id"]))
    return Transactions(found[:MAX_SHOWN], sum(is_open), len(listed))


async def transactions(request: Request) -> Response:
    found = await console(request).kafka.cached(read_transactions)
    return page(
        request, "transactions.html", found=found, idle_states=IDLE_STATES, duration=format_duration,
        partitions_text=partitions_text,
    )  # fmt: skip


def terminate_open(cluster: ClusterClient, transactional_id: str, is_confirmed: bool) -> dict[str, Any]:
    """Return a transaction, and end it if that is confirmed. Raises CliError."""
    found = describe_transaction(cluster, transactional_id)
    raise_error(found.error_code, subject=f"transactional id {transactional_id}: ")
    if is_confirmed:
        fence_producer(cluster, found)
    return description_json(found, -1, round(time() * 1000))


async def terminate(request: Request) -> Response:
    form, kafka = await read_form(request), console(request).kafka
    transactional_id = form.get("id", "")
    found = await kafka.read(terminate_open, transactional_id, CONFIRMED in form)
    if CONFIRMED in form:
        kafka.forget()
        return see_other("/transactions")
    return confirmation(
        request, f"Abort the transaction of {transactional_id}", ("state", "producer", "open since", "partitions"),
        [[found["state"], found["producer_id"], iso_time(found["start_ms"]), partitions_text(found["partitions"])]],
        verb="Abort and fence the producer", fields={"id": transactional_id}, back="/transactions",
        notes=["The producer is fenced: its application gets an error, and has to begin again."],
    )  # fmt: skip


# Hanging transactions.


async def hanging(request: Request) -> Response:
    idle = request.query_params.get("idle", DEFAULT_IDLE).strip()
    found = await console(request).kafka.cached(hanging_transactions, parse_duration_ms(idle))
    return page(request, "hanging.html", found=found, idle=idle)


class HangingTransaction(NamedTuple):
    """An open transaction of a partition, and the partition's leader."""

    producer: PartitionProducer
    leader: int


def find_open(cluster: ClusterClient, partition: Partition, start_offset: int) -> HangingTransaction:
    """Raises CliError if no transaction of the partition begins there."""
    leader = partition_leaders(cluster, [partition[0]]).get(partition, -1)
    if leader < 0:
        raise CliError(f"{partition[0]}-{partition[1]} does not exist, or has no leader")
    for producer in describe_producers(cluster, {partition: leader}):
        if producer.start_offset == start_offset:
            return HangingTransaction(producer, leader)
    raise CliError(f"{partition[0]}-{partition[1]} has no open transaction that begins at offset {start_offset}")


def abort_open(cluster: ClusterClient, partition: Partition, start_offset: int) -> None:
    """Raises CliError."""
    found = find_open(cluster, partition, start_offset)
    marker = abort_marker([found.producer], partition, start_offset)
    write_marker(cluster, partition, found.leader, marker)


async def abort(request: Request) -> Response:
    form, kafka = await read_form(request), console(request).kafka
    topic, index = form.get("topic", ""), integer(form, "partition", 0, INT32)
    start_offset = integer(form, "start_offset", 0, INT64)
    if CONFIRMED in form:
        await kafka.read(abort_open, (topic, index), start_offset)
        kafka.forget()
        return see_other("/transactions/hanging")
    found = await kafka.read(find_open, (topic, index), start_offset)
    row = found.producer
    return confirmation(
        request, f"Abort an open transaction of {topic}-{index}",
        ("producer", "epoch", "first offset", "last record"),
        [[row.producer_id, row.producer_epoch, row.start_offset, iso_time(row.last_timestamp_ms)]],
        verb="Write an abort marker", back="/transactions/hanging",
        fields={"topic": topic, "partition": index, "start_offset": start_offset},
        notes=["Readers with read_committed then pass it, without its records."],
    )  # fmt: skip


routes = [
    Route("/transactions", transactions),
    Route("/transactions/hanging", hanging),
    Route("/transactions/terminate", terminate, methods=["POST"]),
    Route("/transactions/abort", abort, methods=["POST"]),
]
