"""A client that sends stale requests of ended transactions: EndTxn, Produce, TxnOffsetCommit, WriteTxnMarkers.

Such requests arrive in practice: a network delays them, a fenced client does not know that it is fenced, a former
coordinator has not noticed its replacement. All are of transaction version 2, in which none may have any effect
(KIP-890, KIP-1228); in version 1 some have one, in Apache Kafka too. The history records them only as notes, so the
checker reports any effect as an anomaly.
"""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.client.requests import GROUP, TRANSACTION
from kbroker.coordinator.java_hash import key_hash
from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.transactional import FIRST_OF_VERSION_2, VERSION_2, EndedTransaction
from kbroker.simulation.clients.workloads.context import TIMEOUT_S, WorkloadContext
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k08_offset_commits import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.messages.k22_transactions import EndTxnRequest, EndTxnResponse
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TRANSACTIONS_TOPIC = "__transaction_state"
# Most requests repeat one of this many newest transactions: recent ones are more likely to have an effect.
NEWEST_TRANSACTIONS = 5
PAUSE_S = 0.1
# An offset that no client commits; in a committed offset it shows that a stale commit was applied.
STALE_OFFSET = 1_000_000_007
# The first WriteTxnMarkers version with the transaction version.
MARKERS_WITH_VERSION = 2


class StaleClient:
    """Sends requests of `ended_transactions`, a list that grows. `groups`: the groups whose offsets it commits."""

    def __init__(
        self,
        context: WorkloadContext,
        name: str,
        random: Random,
        ended_transactions: Sequence[EndedTransaction],
        groups: Sequence[str],
    ) -> None:
        self._context = context
        self._name = name
        self._cluster = Cluster(context.loop, context.bootstrap, random, name, timeout_s=TIMEOUT_S)
        self._random = random
        self._ended_transactions = ended_transactions
        self._groups = groups

    async def run(self) -> None:
        """Send stale requests until stopped."""
        random = self._random
        senders = [self._end_transaction] * 2 + [self._produce] + [self._write_markers] * 2
        if self._groups:
            senders.append(self._commit_offsets)
        while not self._context.stop.requested:
            await asyncio.sleep(random.random() * 2 * PAUSE_S)
            newest = self._ended_transactions[-NEWEST_TRANSACTIONS:]
            candidates = self._ended_transactions if random.random() < 0.1 else newest
            if not candidates:
                continue
            ended = random.choice(candidates)
            try:
                description, code = await random.choice(senders)(ended)
            except OSError:
                await self._cluster.backoff()
            else:
                text = f"{description} of {ended.transactional_id} {ended.identity} again: {code.name}"
                self._context.history.note(self._name, text)
        self._cluster.close()

    async def _end_transaction(self, ended: EndedTransaction) -> tuple[str, ErrorCode]:
        """Repeat the EndTxn, or send the opposite one."""
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
        # Version 12 is the last with topic names. Version 9 makes it a request of transaction version 1.
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
        """Send a transaction marker to one of the transaction's partitions.

        The coordinator epoch is the current one or the one before. The coordinator may still be sending its own marker,
        so the opposite result is sent only if a later transaction of this id has ended.
        """
        if not ended.batches:
            return "nothing", ErrorCode.NONE
        (topic, index), _ = self._random.choice(ended.batches)
        await self._cluster.refresh_metadata([TRANSACTIONS_TOPIC, topic])
        # The epochs of the topic's partitions differ. A marker with a later one would fence the coordinator.
        coordinator = key_hash(ended.transactional_id) % max(
            1, self._cluster.partition_counts.get(TRANSACTIONS_TOPIC, 0)
        )
        leader = self._cluster.leaders.get((TRANSACTIONS_TOPIC, coordinator))
        coordinator_epoch = (leader.epoch if leader is not None else 0) - self._random.choice((0, 0, 1))
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
            other.transactional_id == ended.transactional_id and other.identity >= ended.next_identity
            for other in self._ended_transactions
        )

    async def _commit_offsets(self, ended: EndedTransaction) -> tuple[str, ErrorCode]:
        """Commit an offset without a generation, which brokers do not check: only the epoch is stale."""
        group = self._random.choice(self._groups)
        connection = await self._cluster.coordinator(group, GROUP)
        producer_id, epoch = ended.identity
        tp: TopicPartition = self._random.choice([tp for tp, _ in ended.batches] or [("topic0", 0)])
        partition = TxnOffsetCommitRequestPartition(
            partition_index=tp[1], committed_offset=STALE_OFFSET, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=ended.transactional_id,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name=tp[0], partitions=[partition])],
        )
        version = self._random.choice((FIRST_OF_VERSION_2[ApiKey.TXN_OFFSET_COMMIT], 3))
        try:
            response = await connection.request(request, TxnOffsetCommitResponse, version=version)
        finally:
            connection.close()
        return f"offsets of {group}", ErrorCode(response.topics[0].partitions[0].error_code)
