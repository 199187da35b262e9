"""The controller's side of `kbroker topics alter --partitions` with fewer partitions than a topic has.

Empty partitions are removed at once. Others close: their records are forwarded, until retention has deleted those that
consumers see. Then this looks again, from time to time.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.metadata.topics.close_partitions import first_closing, is_closing_error
from kbroker.metadata.topics.remove_partitions import ClosingPartitions
from kbroker.runtime.event_log import EventLogger
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
    from kbroker.metadata.controller import Controller
    from kbroker.metadata.image import Forwarding, MetadataImage, TopicImage
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.closing")

# The first version in which a leader whose high watermark is still unknown refuses with a code of its own.
LIST_OFFSETS_VERSION = 5
EARLIEST, LATEST = -2, -1
# How long the leaders may take to load the new leader epoch, and to forward the last records; how often they are asked.
MAX_WAIT_S, MAX_DRAIN_S, RETRY_BACKOFF_S = 10.0, 5.0, 0.1
# How often closing partitions are looked at, and how long after an attempt to remove them that has failed.
CHECK_INTERVAL_MS, FAILED_BACKOFF_S = 10_000, 60.0
# How many partitions an error message names.
MAX_NAMED = 5


class RemovalOutcome(IntEnum):
    REMOVED = 0
    CLOSING = 1
    REOPENED = 2


class LeaderOffsets(NamedTuple):
    """Of a partition, as its leader has them. `start_epoch`: the leader epoch of the log start offset."""

    start: int
    end: int
    start_epoch: int


class PartitionRemoval:
    """Only the controller's does anything. `peers` is None if this broker is not a member of a cluster."""

    def __init__(
        self,
        environment: Environment,
        metadata: MetadataImage,
        controller: Controller,
        replicas: ReplicaManager,
        peers: Peers | None,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._controller = controller
        self._replicas = replicas
        self._peers = peers
        self._config = config
        # When the next attempt for a topic may begin, on the loop's clock.
        self._not_before: dict[bytes, float] = {}

    async def alter(self, name: str, count: int) -> RemovalOutcome:
        """Remove the partitions of a topic from `count` on, or close them; or cancel that. Raises KafkaError."""
        topic = self._metadata.topics.get(name)
        first = None if topic is None else first_closing(topic)
        if topic is not None and first is not None:
            if count == len(topic.partitions):
                await self._controller.cancel_closing(name)
                return RemovalOutcome.REOPENED
            if count != first:
                raise is_closing_error(topic, first)
        return await self._remove_or_close(name, count)

    async def _remove_or_close(self, name: str, count: int) -> RemovalOutcome:
        controller = self._controller
        closing = await controller.close_partitions(name, count)
        try:
            offsets = await self._offsets_of_all(closing)
            topic = self._metadata.topics_by_id.get(closing.topic_id)
            is_forwarding = topic is not None and first_closing(topic) is not None
            if is_forwarding:
                offsets = await self._drained(closing, offsets)
            filled = [(index, row) for index, row in sorted(offsets.items()) if row.start != row.end]
            if not filled:
                await controller.remove_partitions(closing)
                return RemovalOutcome.REMOVED
            if not is_forwarding:
                await self._begin(closing, filled)
            return RemovalOutcome.CLOSING
        finally:
            # Those that could not be removed; also if the outcome of their removal is unknown.
            await controller.reopen_partitions(closing.topic_id)

    async def _begin(self, closing: ClosingPartitions, filled: list[tuple[int, LeaderOffsets]]) -> None:
        try:
            await self._controller.begin_closing(closing)
        except KafkaError as error:
            if error.code not in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_PARTITIONS):
                raise
            named = ", ".join(f"{index} (offsets {row.start} to {row.end - 1})" for index, row in filled[:MAX_NAMED])
            others = f" and {len(filled) - MAX_NAMED} more" if len(filled) > MAX_NAMED else ""
            message = f"{error.message} These partitions have records: {named}{others}."
            raise KafkaError(error.code, message) from error

    async def _drained(self, closing: ClosingPartitions, offsets: dict[int, LeaderOffsets]) -> dict[int, LeaderOffsets]:
        """Wait until the leaders have forwarded, and deleted, what is hidden; not for records that consumers see."""
        loop = self._environment.loop
        deadline_s = loop.time() + MAX_DRAIN_S
        while loop.time() < deadline_s and any(row.start != row.end for row in offsets.values()):
            topic = self._metadata.topics_by_id.get(closing.topic_id)
            if topic is None or not _is_invisible(topic, offsets):
                break
            await self._environment.sleep(RETRY_BACKOFF_S)
            offsets = await self._offsets_of_all(closing)
        return offsets

    @property
    def is_needed(self) -> bool:
        """Whether partitions are closing."""
        # The highest partition is always one of them.
        topics = self._metadata.topics.values()
        return any(topic.partitions and _is_active(topic.partitions[-1].forwarding) for topic in topics)

    async def remove_emptied(self) -> None:
        """Remove the closing partitions of all topics in which consumers see no records any more."""
        loop = self._environment.loop
        for topic in list(self._metadata.topics.values()):
            if not self._controller.is_elected:
                return
            if not topic.partitions or not _is_active(topic.partitions[-1].forwarding):
                continue
            first = first_closing(topic)
            if first is None or loop.time() < self._not_before.get(topic.topic_id, 0.0):
                continue
            rows = list(enumerate(topic.partitions[first:], first))
            if any(row.leader == NO_LEADER for _, row in rows):
                continue
            leaders = {index: (row.leader, row.leader_epoch) for index, row in rows}
            looked_at = ClosingPartitions(topic.name, topic.topic_id, first, leaders)
            try:
                if not _is_invisible(topic, await self._offsets_of_all(looked_at)):
                    continue
                if await self._remove_or_close(topic.name, first) is RemovalOutcome.REMOVED:
                    log.info("closed partitions removed", topic=topic.name, first=first)
                    self._not_before.pop(topic.topic_id, None)
                    continue
            except KafkaError as error:
                log.info("closed partitions not removed yet", topic=topic.name, reason=error)
            # A transaction may be open. Producers are refused while an attempt lasts, so the next one comes later.
            self._not_before[topic.topic_id] = loop.time() + FAILED_BACKOFF_S

    # The offsets of the leaders.

    async def _offsets_of_all(self, closing: ClosingPartitions) -> dict[int, LeaderOffsets]:
        """Return the offsets of each partition, as its leader has them in its leader epoch. Raises KafkaError."""
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
        """Return an offset of each partition that a peer leads, and its leader epoch. Raises KafkaError.

        The peer responds for this leader epoch only, so it has closed the partition. The latest offset is then its log
        end offset: it is refused until the high watermark has reached the start of the epoch, and no records are
        appended since. A marker may be, but then its transaction keeps the log start offset below.
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


def _is_active(forwarding: Forwarding | None) -> bool:
    return forwarding is not None and forwarding.is_active


def _is_invisible(topic: TopicImage, offsets: dict[int, LeaderOffsets]) -> bool:
    """Return whether consumers see no records in these closing partitions."""
    for index, row in offsets.items():
        forwarding = topic.partitions[index].forwarding if index < len(topic.partitions) else None
        if row.start != row.end and (forwarding is None or row.start_epoch < forwarding.closed_epoch):
            return False
    return True
