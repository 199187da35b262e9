"""Wait, after the faults have ended, until no transaction is open and all input records are transformed."""

from collections.abc import Sequence

from kbroker.simulation.checker.history import History, TopicPartition
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.consumer.group_offsets import StandaloneGroupOffsets
from kbroker.simulation.clients.consumer.offset_lookup import LATEST, RefusedError, list_offset
from kbroker.simulation.clients.producer.transactional import TransactionalProducer
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

# Longer than any transaction timeout plus the coordinator's interval for checking it.
FENCE_AFTER_S = 40.0
# The ListTransactions states of a transaction that has not ended.
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


async def wait_until_no_open_transaction(
    cluster: Cluster, history: History, partitions: Sequence[TopicPartition], *, late: bool
) -> None:
    """Wait until no coordinator lists an open transaction and no partition has an unstable offset.

    `late`: the wall clock was ahead at times. A transaction that began then times out only when the clock reaches that
    time again, as in Apache Kafka, so its transactional id is fenced after FENCE_AFTER_S.
    """
    fence_after = cluster.loop.time() + FENCE_AFTER_S
    while True:
        try:
            transactional_ids = await _open_transactions(cluster)
            if not transactional_ids:
                ends = [await _ends(cluster, tp) for tp in partitions]
                if all(stable == end for stable, end in ends):
                    return
            if late and cluster.loop.time() > fence_after:
                await _fence(cluster, history, transactional_ids)
        except (OSError, RefusedError):
            pass
        await cluster.backoff()


async def _open_transactions(cluster: Cluster) -> list[str]:
    """Return the transactional ids with an open transaction. Raises OSError, RefusedError."""
    await cluster.refresh_metadata([])
    transactional_ids: list[str] = []
    # Each broker lists the transactions that it coordinates.
    for node in cluster.nodes:
        connection = await cluster.node(node)
        request = ListTransactionsRequest(state_filters=list(OPEN_STATES))
        response = await connection.request(request, ListTransactionsResponse)
        if response.error_code:
            raise RefusedError(response.error_code)
        transactional_ids += [state.transactional_id for state in response.transaction_states]
    return transactional_ids


async def _fence(cluster: Cluster, history: History, transactional_ids: Sequence[str]) -> None:
    """Abort the open transactions of these ids by initializing new producers. Raises FatalError."""
    for transactional_id in transactional_ids:
        process = f"settling of {transactional_id}"
        await TransactionalProducer(cluster, history, process, cluster.random, transactional_id).init()


async def wait_until_all_transformed(
    cluster: Cluster, history: History, group: str, partitions: Sequence[TopicPartition], *, late: bool
) -> None:
    """Wait until the group has committed the end of each partition. For `late` see above."""
    await wait_until_no_open_transaction(cluster, history, partitions, late=late)
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
