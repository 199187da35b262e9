"""After the faults have ended: wait until no transaction is open and all input is transformed; fetches that wait."""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.simulation.checker.history import History, TopicPartition
from kbroker.simulation.clients.cluster import Cluster, RefusedError
from kbroker.simulation.clients.connection import SimClientConnection
from kbroker.simulation.clients.consumer import INITIAL_EPOCH
from kbroker.simulation.clients.group_offsets import LATEST, GroupOffsets, list_offset
from kbroker.simulation.clients.workloads.context import WorkloadContext
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

# The ListTransactions states of a transaction that has not ended.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


async def wait_until_no_open_transaction(cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
    """Wait until no coordinator lists an open transaction and no partition has an unstable offset."""

    async def is_over() -> bool:
        if await _has_open_transactions(cluster):
            return False
        ends = [await _ends(cluster, tp) for tp in partitions]
        return all(stable == end for stable, end in ends)

    while not await cluster.retry(is_over):
        await cluster.backoff()


async def _has_open_transactions(cluster: Cluster) -> bool:
    """Raises OSError, RefusedError."""
    await cluster.refresh_metadata([])
    found = False
    # Each broker lists the transactions that it coordinates.
    for node in cluster.nodes:
        connection = await cluster.node(node)
        request = ListTransactionsRequest(state_filters=list(OPEN_STATES))
        response = await connection.request(request, ListTransactionsResponse)
        if response.error_code:
            raise RefusedError(response.error_code)
        found = found or bool(response.transaction_states)
    return found


async def wait_until_all_transformed(
    cluster: Cluster, history: History, group: str, partitions: Sequence[TopicPartition]
) -> None:
    """Wait until no transaction is open and the group has committed the end of each partition."""
    await wait_until_no_open_transaction(cluster, partitions)
    group_offsets = GroupOffsets(cluster, history, "settling", group)

    async def is_transformed() -> bool:
        await cluster.refresh_metadata(list(dict.fromkeys(topic for topic, _ in partitions)))
        committed = await group_offsets.committed(partitions)
        ends = {tp: await _ends(cluster, tp) for tp in partitions}
        return all(stable == end == committed[tp][0] or end == 0 for tp, (stable, end) in ends.items())

    while not await cluster.retry(is_transformed):
        await cluster.backoff()


async def _ends(cluster: Cluster, tp: TopicPartition) -> tuple[int, int]:
    """Return the last stable offset and the high watermark. Raises OSError."""
    stable, _ = await list_offset(cluster, tp, LATEST, committed_only=True)
    end, _ = await list_offset(cluster, tp, LATEST)
    return stable, end


# Fetches that wait on an idle broker, after the faults have ended.
#
# During the other workloads, timers and appends of other requests may complete a waiting fetch that the broker has
# lost. Here a fetch gets its response only if the broker's own timers complete it.

# The last version with topic names instead of ids.
FETCH_VERSION = 12
# max.wait of two concurrent fetches.
SHORT_WAIT_MS, LONG_WAIT_MS = 100, 400
# max.wait of a superseded fetch: longer than everything else here.
SUPERSEDED_WAIT_MS = 5_000
# How late a response may be.
SLACK_S = 1.0


class LateResponse(AssertionError):
    """A waiting fetch did not get its response in time."""


async def fetch_on_idle_broker(context: WorkloadContext, random: Random, tp: TopicPartition) -> None:
    """Send two fetches that wait at the end of a partition, then two in one session. Raises LateResponse."""
    while True:
        try:
            return await _fetch_once(context, random, tp)
        except OSError:
            # The broker's session expired after the last fault, so it has stopped. The supervisor starts it again.
            await asyncio.sleep(SLACK_S)


async def _fetch_once(context: WorkloadContext, random: Random, tp: TopicPartition) -> None:
    clusters = [Cluster(context.loop, context.bootstrap, random, f"waiter{number}") for number in range(2)]
    try:
        connections, end = await _connect(clusters, tp)
        await _wait_for_deadlines(context.loop, connections, tp, end)
        await _supersede(context.loop, connections, tp, end)
    finally:
        for cluster in clusters:
            cluster.close()


async def _connect(clusters: list[Cluster], tp: TopicPartition) -> tuple[list[SimClientConnection], int]:
    """Connect to one broker, which has the session, even while brokers do not agree on the leader."""
    first, second = clusters

    async def connect() -> tuple[list[SimClientConnection], int]:
        end, _ = await list_offset(first, tp, LATEST)
        connection = await first.leader(tp)
        await second.refresh_metadata([tp[0]])
        return [connection, await second.node(first.leaders[tp].node)], end

    return await first.retry(connect)


async def _wait_for_deadlines(
    loop: asyncio.AbstractEventLoop, connections: list[SimClientConnection], tp: TopicPartition, end: int
) -> None:
    """Wait for two fetches. The second deadline is after the first response, when no request sets a timer any more."""
    waits = [
        _fetch_in_time(loop, connection, _request(tp, end, wait_ms), wait_ms / 1000)
        for connection, wait_ms in zip(connections, (SHORT_WAIT_MS, LONG_WAIT_MS), strict=True)
    ]
    await asyncio.gather(*waits)


async def _supersede(
    loop: asyncio.AbstractEventLoop, connections: list[SimClientConnection], tp: TopicPartition, end: int
) -> None:
    """Send the next fetch of a session on a second connection, while its last one waits on the first connection."""
    session_id = (await _fetch_in_time(loop, connections[0], _request(tp, end, 0, INITIAL_EPOCH), 0.0)).session_id
    if not session_id:
        # The broker's fetch session cache is full.
        return
    first = loop.create_task(
        connections[0].request(
            _in_session(session_id, INITIAL_EPOCH + 1, SUPERSEDED_WAIT_MS), FetchResponse, version=FETCH_VERSION
        )
    )
    await asyncio.sleep(SHORT_WAIT_MS / 1000)
    second = _in_session(session_id, INITIAL_EPOCH + 2, SHORT_WAIT_MS)
    try:
        await _fetch_in_time(loop, connections[1], second, SHORT_WAIT_MS / 1000)
    except OSError:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        raise
    if not first.done():
        first.cancel()
        raise LateResponse("the second fetch of a session has its response, and the first still waits")


async def _fetch_in_time(
    loop: asyncio.AbstractEventLoop, connection: SimClientConnection, request: FetchRequest, wait_s: float
) -> FetchResponse:
    begun = loop.time()
    try:
        response = await connection.request(request, FetchResponse, version=FETCH_VERSION, timeout_s=wait_s + SLACK_S)
    except OSError as error:
        elapsed_s = loop.time() - begun
        if elapsed_s < wait_s + SLACK_S:
            raise
        raise LateResponse(
            f"a fetch that waits for {wait_s} s has no response after {elapsed_s:.3f} s: {error}"
        ) from None
    assert not response.error_code, response
    return response


def _request(tp: TopicPartition, offset: int, wait_ms: int, session_epoch: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=tp[1], fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=tp[0], partitions=[partition])],
    )


def _in_session(session_id: int, session_epoch: int, wait_ms: int) -> FetchRequest:
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, session_id=session_id, session_epoch=session_epoch)
