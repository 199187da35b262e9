"""Asks the leaders of closing partitions for their log start offsets and log end offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.metadata.topics.closing_partitions import ClosingPartitions
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.interbroker.peers import Peers
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

# The first version with OFFSET_NOT_AVAILABLE, for a leader whose high watermark is still unknown.
LIST_OFFSETS_VERSION = 5
EARLIEST, LATEST = -2, -1
# How long the leaders may take to apply the new leader epoch, and how often they are asked.
MAX_WAIT_S, RETRY_BACKOFF_S = 10.0, 0.1


class LeaderOffsets(NamedTuple):
    """The log start offset and log end offset of a leader. `start_epoch`: the leader epoch at the log start offset."""

    start: int
    end: int
    start_epoch: int


class LeaderOffsetLookup:
    """`peers` is None if this broker is not a member of a cluster."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        peers: Peers | None,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._replicas = replicas
        self._peers = peers
        self._config = config

    async def look_up(self, closing: ClosingPartitions) -> dict[int, LeaderOffsets]:
        """Return the offsets of each partition, if its leader is in the expected epoch. Raises KafkaError."""
        by_leader: dict[int, list[int]] = {}
        for index, (leader, _) in closing.leaders.items():
            by_leader.setdefault(leader, []).append(index)
        offsets: dict[int, LeaderOffsets] = {}
        for leader, indexes in by_leader.items():
            if leader == self._replicas.node_id:
                offsets |= {index: self._local_offsets(closing, index) for index in indexes}
            else:
                start = await self._peer_offsets(closing, leader, indexes, EARLIEST)
                end = await self._peer_offsets(closing, leader, indexes, LATEST)
                offsets |= {index: LeaderOffsets(start[index][0], end[index][0], start[index][1]) for index in indexes}
        return offsets

    def _local_offsets(self, closing: ClosingPartitions, index: int) -> LeaderOffsets:
        partition = self._replicas.leader(closing.topic_id, index)
        partition.check_leader(closing.leaders[index][1])
        start = partition.log.log_start_offset
        return LeaderOffsets(start, partition.log.log_end_offset, partition.log.epochs.epoch_for(start))

    async def _peer_offsets(
        self, closing: ClosingPartitions, leader: int, indexes: list[int], timestamp: int
    ) -> dict[int, tuple[int, int]]:
        """Return (offset, leader epoch) for the timestamp EARLIEST or LATEST, by partition. Raises KafkaError.

        A peer responds only in the expected leader epoch, so it has closed the partition. Its latest offset is then the
        log end offset: the peer refuses the request until its high watermark has reached the start of the epoch, and
        appends no records in this epoch. It may append a marker, but then the records of the transaction are still
        there, so the log start offset is lower.
        """
        request = ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    name=closing.name,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=closing.leaders[index][1], timestamp=timestamp
                        )
                        for index in indexes
                    ],
                )
            ]
        )
        if self._peers is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        loop = self._environment.loop
        deadline_s = loop.time() + MAX_WAIT_S
        while True:
            timeout_ms = self._config().request_timeout_ms
            response = await self._peers.request(leader, request, LIST_OFFSETS_VERSION, timeout_ms=timeout_ms)
            assert isinstance(response, ListOffsetsResponse)
            rows = [row for topic in response.topics for row in topic.partitions]
            failed = [row for row in rows if row.error_code]
            if not failed and len(rows) == len(indexes):
                return {row.partition_index: (row.offset, row.leader_epoch) for row in rows}
            if loop.time() > deadline_s:
                code = ErrorCode(failed[0].error_code) if failed else ErrorCode.UNKNOWN_SERVER_ERROR
                raise KafkaError(code)
            await self._environment.sleep(RETRY_BACKOFF_S)
