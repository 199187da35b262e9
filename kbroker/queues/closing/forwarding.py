"""Brings batches of closing partitions to their target partitions: each batch once, however often it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config import BrokerConfig
from kbroker.metadata.image import MetadataImage
from kbroker.queues.closing.forwarded_batches import position_of
from kbroker.queues.waits import wait_until_committed
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.environment import Environment
from kbroker.storage.log.transaction_index import PreparedBatch
from kbroker.storage.producers.producer_state_manager import FIRST_FORWARDER_ID
from protocol.errors import ErrorCode
from protocol.messages.k10020_forward_records import ForwardRecordsRequest, ForwardRecordsResponse
from protocol.records.batch import iter_headers

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers

# Of ForwardRecords.
VERSION = 0


class ForwardingSender:
    """`peers` is None if this broker is not a member of a cluster."""

    def __init__(
        self,
        environment: Environment,
        metadata: MetadataImage,
        replicas: ReplicaManager,
        peers: Peers | None,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._config = config

    async def send(self, topic_id: bytes, index: int, records: bytes) -> int:
        """Append batches to a partition, see `append_forwarded`. After a KafkaError, send them again."""
        topic = self._metadata.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        leader = topic.partitions[index].leader
        if leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        if leader == self._replicas.node_id:
            return await append_forwarded(self._environment, self._replicas.leader(topic_id, index), records)
        if self._peers is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        request = ForwardRecordsRequest(topic_id=topic_id, partition_index=index, records=records)
        timeout_ms = self._config().request_timeout_ms
        response = await self._peers.request(leader, request, VERSION, timeout_ms=timeout_ms)
        assert isinstance(response, ForwardRecordsResponse)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), response.error_message)
        return response.last_position


async def append_forwarded(environment: Environment, partition: Partition, records: bytes) -> int:
    """Append those batches of a forwarder that are not stored yet, and wait until all are committed.

    Returns the position of the forwarder's last batch in the log, which may be later than these. Raises KafkaError; the
    batches may be stored nevertheless.
    """
    if not partition.is_leader or partition.is_closing:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if partition.state.is_under_min_isr:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    headers = list(iter_headers(records))
    if not headers or any(header.producer_id < FIRST_FORWARDER_ID for _, header in headers):
        raise KafkaError(ErrorCode.INVALID_RECORD, "These are not the batches of a closing partition.")
    stored = partition.log.producers.first_of_last_batch(headers[0][1].producer_id)
    last = -1 if stored is None else position_of(*stored)
    batches: list[PreparedBatch] = []
    for at, header in headers:
        position = position_of(header.producer_epoch, header.base_sequence)
        if position > last:
            batches.append((bytearray(records[at : at + header.size]), header, None))
            last = position
    if batches:
        partition.append_batches(batches, environment.clock.now_ms())
    # Also for duplicates: their originals may not be committed, and the forwarder continues after them.
    await wait_until_committed(environment.loop, partition)
    return last
