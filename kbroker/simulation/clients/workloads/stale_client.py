"""A client that sends again what has had its time: ends, batches, offsets and markers of transactions that are over.

That is what a network does that keeps a request for long, a client that has been fenced and does not know it, and a
coordinator that is not one any more. All is of version 2, in which none of it may have any effect (KIP-890, KIP-1228);
in version 1 some of it has, in Apache Kafka too. What it does is in the history as notes only, so that any effect is
one that the checker cannot explain.
"""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.simulation.checker.history import Place
from kbroker.simulation.clients.connections.cluster import GROUP, TRANSACTION, Cluster
from kbroker.simulation.clients.producer.transactional import FIRST_OF_VERSION_2, VERSION_2, EndedTransaction
from kbroker.simulation.clients.workloads.transactions import SharedTransactionState
from kbroker.simulation.clients.workloads.workload import WorkloadContext
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

TRANSACTIONS_TOPIC = "__transaction_state"
# Of the newest transactions one is taken mostly: what is younger is more dangerous.
NEWEST = 5
# An offset that nobody commits.
WRONG_OFFSET = 1_000_000_007
# The version of WriteTxnMarkers that says which transactions it is about.
MARKERS_WITH_VERSION = 2


class StaleClient:
    """`ended_transactions`: all that there are. `groups`: whose offsets it attempts to commit."""

    def __init__(
        self,
        cluster: Cluster,
        random: Random,
        ended_transactions: Sequence[EndedTransaction],
        groups: Sequence[str] = (),
    ) -> None:
        self._cluster = cluster
        self._random = random
        self._relics = ended_transactions
        self._groups = groups

    async def send_stale_request(self, ended: EndedTransaction) -> str:
        """One thing that is out of date; gives what it was and what was answered. Raises OSError."""
        ways = [self._end_transaction, self._end_transaction, self._produce, self._write_markers, self._write_markers]
        if self._groups:
            ways.append(self._commit_offsets)
        description, code = await self._random.choice(ways)(ended)
        return f"{description} of {ended.transactional_id} {ended.identity} again: {code.name}"

    async def _end_transaction(self, ended: EndedTransaction) -> tuple[str, ErrorCode]:
        """As it was, or the other way."""
        commit = ended.committed if self._random.random() < 0.5 else not ended.committed
        connection = await self._cluster.coordinator(ended.transactional_id, TRANSACTION)
        producer_id, epoch = ended.identity
        request = EndTxnRequest(
            transactional_id=ended.transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
        )
        version = self._random.choice((connection.version(ApiKey.END_TXN), 3))
        try:
            response = await connection.request(request, EndTxnResponse, version=version)
        finally:
            connection.close()
        return "commit" if commit else "abort", ErrorCode(response.error_code)

    async def _produce(self, ended: EndedTransaction) -> tuple[str, ErrorCode]:
        if not ended.batches:
            return "nothing", ErrorCode.NONE
        (topic, index), data = self._random.choice(ended.batches)
        connection = await self._cluster.leader((topic, index))
        # By name, and sometimes as a client that adds partitions itself.
        version = self._random.choice((FIRST_OF_VERSION_2[ApiKey.PRODUCE], 9))
        partition = PartitionProduceData(index=index, records=bytearray(data))
        request = ProduceRequest(
            transactional_id=ended.transactional_id,
            acks=-1,
            timeout_ms=1_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[partition])],
        )
        response = await connection.request(request, ProduceResponse, version=version)
        return f"a batch for {topic}-{index}", ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def _write_markers(self, ended: EndedTransaction) -> tuple[str, ErrorCode]:
        """As the coordinator has sent them, or as one before it would have; to the partitions that they were for. What
        it has decided may still be on its way there: the other way only where a later transaction has ended."""
        if not ended.batches:
            return "nothing", ErrorCode.NONE
        (topic, index), _ = self._random.choice(ended.batches)
        await self._cluster.refresh_metadata([TRANSACTIONS_TOPIC, topic])
        epochs = [one.epoch for place, one in self._cluster.leaders.items() if place[0] == TRANSACTIONS_TOPIC]
        coordinator_epoch = max(epochs, default=0) - self._random.choice((0, 0, 1))
        connection = await self._cluster.leader((topic, index))
        marker = WritableTxnMarker(
            producer_id=ended.next_identity[0],
            producer_epoch=ended.next_identity[1],
            transaction_result=ended.committed ^ (self._has_later_transaction(ended) and self._random.random() < 0.5),
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            coordinator_epoch=max(coordinator_epoch, 0),
            transaction_version=VERSION_2,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        response = await connection.request(request, WriteTxnMarkersResponse, version=MARKERS_WITH_VERSION)
        return f"a marker for {topic}-{index}", ErrorCode(response.markers[0].topics[0].partitions[0].error_code)

    def _has_later_transaction(self, ended: EndedTransaction) -> bool:
        return any(
            one.transactional_id == ended.transactional_id and one.identity >= ended.next_identity
            for one in self._relics
        )

    async def _commit_offsets(self, ended: EndedTransaction) -> tuple[str, ErrorCode]:
        """As a member of no generation, which is not checked: the epoch alone can tell that it is late."""
        group = self._random.choice(self._groups)
        connection = await self._cluster.coordinator(group, GROUP)
        producer_id, epoch = ended.identity
        place: Place = self._random.choice([place for place, _ in ended.batches] or [("topic0", 0)])
        partition = TxnOffsetCommitRequestPartition(
            partition_index=place[1], committed_offset=WRONG_OFFSET, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=ended.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name=place[0], partitions=[partition])],
        )
        version = self._random.choice((FIRST_OF_VERSION_2[ApiKey.TXN_OFFSET_COMMIT], 3))
        try:
            response = await connection.request(request, TxnOffsetCommitResponse, version=version)
        finally:
            connection.close()
        return f"offsets of {group}", ErrorCode(response.topics[0].partitions[0].error_code)


async def send_stale_requests(
    context: WorkloadContext,
    name: str,
    random: Random,
    shared: SharedTransactionState,
    groups: Sequence[str] = (),
    pause_s: float = 0.1,
) -> None:
    """Until it is told to stop."""
    cluster = Cluster(context.loop, context.bootstrap, random, name, timeout_s=context.timeout_s)
    stale_client = StaleClient(cluster, random, shared.ended_transactions, groups)
    while not context.stop.requested:
        await asyncio.sleep(random.random() * 2 * pause_s)
        ended_transactions = shared.ended_transactions if random.random() < 0.1 else shared.ended_transactions[-NEWEST:]
        if not ended_transactions:
            continue
        try:
            description = await stale_client.send_stale_request(random.choice(ended_transactions))
        except OSError:
            await cluster.backoff()
        else:
            context.history.note(name, description)
    cluster.close()
