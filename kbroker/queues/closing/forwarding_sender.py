"""Sends batches of closing partitions to the leaders of their target partitions, on this broker or another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER, KafkaError
from kbroker.queues.closing.forwarding_target import append_forwarded
from protocol.errors import ErrorCode
from protocol.messages.k10020_forward_records import ForwardRecordsRequest, ForwardRecordsResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.config import BrokerConfig
    from kbroker.interbroker.peers import Peers
    from kbroker.metadata.image import MetadataImage
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

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
