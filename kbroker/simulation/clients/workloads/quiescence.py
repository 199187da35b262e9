"""When faults are over: wait until no transaction is open any more, and a group has transformed all that there is."""

from collections.abc import Sequence

from kbroker.simulation.checker.history import History, Place
from kbroker.simulation.clients.connections.cluster import Cluster
from kbroker.simulation.clients.consumer.group_offsets import StandaloneGroupOffsets
from kbroker.simulation.clients.consumer.offset_lookup import LATEST, RefusedError, list_offset
from kbroker.simulation.clients.producer.transactional import TransactionalProducer
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse

# Longer than any transaction's timeout and what it takes to see it.
PATIENCE_S = 40.0
# Of those that ListTransactions knows, the states of a transaction that is not over.
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


async def wait_until_no_open_transaction(
    cluster: Cluster, history: History, places: Sequence[Place], *, late: bool
) -> None:
    """Until the coordinator has none, and no partition has one that its coordinator has forgotten. `late`: one that has
    begun while the wall clock was ahead has its timeout when the clock comes there again, as in Apache Kafka; somebody
    takes its transactional id over after some time."""
    patient_until = cluster.loop.time() + PATIENCE_S
    while True:
        try:
            connection = await cluster.any_node()
            request = ListTransactionsRequest(state_filters=list(OPEN))
            response = await connection.request(request, ListTransactionsResponse)
            if not response.error_code and not response.transaction_states:
                ends = [await _ends(cluster, place) for place in places]
                if all(stable == end for stable, end in ends):
                    return
            if late and cluster.loop.time() > patient_until:
                await _fence(cluster, history, [one.transactional_id for one in response.transaction_states])
        except OSError:
            pass
        await cluster.backoff()


async def _fence(cluster: Cluster, history: History, transactional_ids: Sequence[str]) -> None:
    """What they have open is aborted. Raises FatalError."""
    for transactional_id in transactional_ids:
        process = f"settling of {transactional_id}"
        await TransactionalProducer(cluster, history, process, cluster.random, transactional_id).init()


async def wait_until_all_transformed(
    cluster: Cluster, history: History, group: str, places: Sequence[Place], *, late: bool
) -> None:
    """Until the group has committed the end of each partition. `late` as above."""
    await wait_until_no_open_transaction(cluster, history, places, late=late)
    group_offsets = StandaloneGroupOffsets(cluster, history, "settling", group)
    while True:
        try:
            await cluster.refresh_metadata(list(dict.fromkeys(topic for topic, _ in places)))
            committed = await group_offsets.committed(places)
            ends = {place: await _ends(cluster, place) for place in places}
            if all(stable == end == committed[place][0] or end == 0 for place, (stable, end) in ends.items()):
                return
        except (OSError, RefusedError):
            pass
        await cluster.backoff()


async def _ends(cluster: Cluster, place: Place) -> tuple[int, int]:
    """The last stable offset and the high watermark. Raises OSError."""
    stable, _ = await list_offset(cluster, place, LATEST, committed_only=True)
    end, _ = await list_offset(cluster, place, LATEST)
    return stable, end
