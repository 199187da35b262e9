"""Wait, after the faults have ended, until no transaction is open and all input records are transformed."""

from collections.abc import Sequence

from kbroker.simulation.checker.history import History, TopicPartition
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.consumer.group_offsets import StandaloneGroupOffsets
from kbroker.simulation.clients.consumer.offset_lookup import LATEST, RefusedError, list_offset
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

# The ListTransactions states of a transaction that has not ended.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


async def wait_until_no_open_transaction(cluster: Cluster, partitions: Sequence[TopicPartition]) -> None:
    """Wait until no coordinator lists an open transaction and no partition has an unstable offset."""
    while True:
        try:
            if not await _has_open_transactions(cluster):
                ends = [await _ends(cluster, tp) for tp in partitions]
                if all(stable == end for stable, end in ends):
                    return
        except (OSError, RefusedError):
            pass
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
    group_offsets = StandaloneGroupOffsets(cluster, history, "settling", group)
    while True:
        try:
            await cluster.refresh_metadata(list(dict.fromkeys(topic for topic, _ in partitions)))
            committed = await group_offsets.committed(partitions)
            ends = {tp: await _ends(cluster, tp) for tp in partitions}
            if all(stable == end == committed[tp][0] or end == 0 for tp, (stable, end) in ends.items()):
                return
        except (OSError, RefusedError):
            pass
        await cluster.backoff()


async def _ends(cluster: Cluster, tp: TopicPartition) -> tuple[int, int]:
    """Return the last stable offset and the high watermark. Raises OSError."""
    stable, _ = await list_offset(cluster, tp, LATEST, committed_only=True)
    end, _ = await list_offset(cluster, tp, LATEST)
    return stable, end
