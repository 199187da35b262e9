"""Adds partitions to transactions, or verifies that they are part of them, with any broker's coordinator (KIP-890).

Produce and TxnOffsetCommit need this on the broker of the partition, which may be another one than that of the
transaction coordinator. The requests of one iteration of the event loop share an AddPartitionsToTxn to each broker.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.peer_requests import RequestQueues
from kbroker.coordinator.runtime.write_event import complete, complete_or_fail
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.topics.topic_names import TRANSACTION_STATE_TOPIC
from kbroker.runtime.environment import Environment
from protocol.errors import ErrorCode, known_error
from protocol.messages.k22_transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers

VERSION = 5
# Partitions are added for clients of this version of transactions; older clients add them themselves.
CLIENT_VERSION = 2

PartitionErrors = dict[TopicPartition, ErrorCode]


class ProducerIdentity(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int


class _QueuedTransaction(NamedTuple):
    producer: ProducerIdentity
    partitions: Sequence[TopicPartition]
    verify_only: bool
    response: Future[PartitionErrors]


class AddPartitionsToTxnManager:
    """`peers` is None if the cluster has no other broker."""

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        metadata: MetadataImage,
        request_timeout_ms: Callable[[], int],
        transactions: TransactionCoordinator,
        peers: Peers | None = None,
    ) -> None:
        self._environment = environment
        self._node_id = node_id
        self._metadata = metadata
        self._transactions = transactions
        self._peers = peers
        self._queues = RequestQueues(environment, VERSION, request_timeout_ms, _next_request, _encode, _complete, _fail)

    def is_local(self, transactional_id: str) -> bool:
        """Return whether this broker has the transaction coordinator, so that `verify_local` can be used."""
        return self._peers is None or self._coordinator(transactional_id) == self._node_id

    def verify_local(self, producer: ProducerIdentity, partitions: Sequence[TopicPartition]) -> PartitionErrors:
        """Verify with the coordinator of this broker; the result is that of `verify`."""
        return self._transactions.verify_partitions(*producer, partitions)

    async def verify(self, producer: ProducerIdentity, partitions: Sequence[TopicPartition]) -> PartitionErrors:
        """Return the error of each partition: NONE if it is part of the open transaction.

        Raises KafkaError if the coordinator refuses the producer, or cannot be reached: COORDINATOR_NOT_AVAILABLE,
        NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, NETWORK_EXCEPTION, REQUEST_TIMED_OUT.
        """
        if self.is_local(producer.transactional_id):
            return self.verify_local(producer, partitions)
        return await self._send_to_peer(producer, partitions, verify_only=True)

    async def add(self, producer: ProducerIdentity, partitions: Sequence[TopicPartition]) -> PartitionErrors:
        """Add partitions to the transaction of a client of transactions version 2, or begin one with them.

        Returns and raises as `verify` does. If one partition has an error, none is added.
        """
        if self.is_local(producer.transactional_id):
            await self._transactions.add_partitions(*producer, partitions, CLIENT_VERSION)
            return dict.fromkeys(partitions, ErrorCode.NONE)
        return await self._send_to_peer(producer, partitions, verify_only=False)

    # Remote coordinators.

    def _coordinator(self, transactional_id: str) -> int | None:
        """Return the broker that leads the id's partition; None if there is none."""
        index = self._transactions.runtime.partition_for(transactional_id)
        partition = self._metadata.partition(TRANSACTION_STATE_TOPIC, index)
        return None if partition is None or partition.leader not in self._metadata.brokers else partition.leader

    def _send_to_peer(
        self, producer: ProducerIdentity, partitions: Sequence[TopicPartition], *, verify_only: bool
    ) -> Future[PartitionErrors]:
        broker_id = self._coordinator(producer.transactional_id)
        if broker_id is None or self._peers is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        response: Future[PartitionErrors] = self._environment.loop.create_future()
        self._queues.add(self._peers, broker_id, _QueuedTransaction(producer, partitions, verify_only, response))
        return response


def _next_request(queue: list[_QueuedTransaction]) -> tuple[list[_QueuedTransaction], list[_QueuedTransaction]]:
    """Return the transactions of the next request, and the others: results are found by the transactional id."""
    request: list[_QueuedTransaction] = []
    others: list[_QueuedTransaction] = []
    ids = set()
    for queued in queue:
        is_first = queued.producer.transactional_id not in ids
        ids.add(queued.producer.transactional_id)
        (request if is_first else others).append(queued)
    return request, others


def _complete(request: Sequence[_QueuedTransaction], response: AddPartitionsToTxnResponse) -> None:
    if response.error_code != ErrorCode.NONE:
        _fail(request, KafkaError(known_error(response.error_code)))
        return
    results = _errors(response)
    for queued in request:
        errors = results.get(queued.producer.transactional_id, {})
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        complete(queued.response, {tp: errors.get(tp, missing) for tp in queued.partitions})


def _fail(request: Sequence[_QueuedTransaction], error: KafkaError) -> None:
    """Fail the requests; their outcome is unknown. A timeout is a network error to the client, as in Kafka."""
    is_timeout = error.code is ErrorCode.REQUEST_TIMED_OUT
    failure = KafkaError(ErrorCode.NETWORK_EXCEPTION) if is_timeout else error
    for queued in request:
        complete_or_fail(queued.response, {}, failure)


def _encode(request: Sequence[_QueuedTransaction]) -> AddPartitionsToTxnRequest:
    transactions = []
    for (transactional_id, producer_id, epoch), partitions, verify_only, _ in request:
        topics: dict[str, list[int]] = {}
        for tp in partitions:
            topics.setdefault(tp.topic, []).append(tp.partition)
        transactions.append(
            AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                verify_only=verify_only,
                topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
            )
        )
    return AddPartitionsToTxnRequest(transactions=transactions)


def _errors(response: AddPartitionsToTxnResponse) -> dict[str, PartitionErrors]:
    return {
        result.transactional_id: {
            TopicPartition(topic.name, partition.partition_index): known_error(partition.partition_error_code)
            for topic in result.topic_results
            for partition in topic.results_by_partition
        }
        for result in response.results_by_transaction
    }
