"""The removal of partitions, from the request to the last step; run by the controller.

`kbroker topics alter --partitions N` with fewer partitions than the topic has closes them: their new records are
forwarded. They retire when retention has deleted the records that consumers see, and are removed when producers no
longer use them; a periodic check finds that out. Partitions that cannot forward records, because of the topic's
configs, are removed at once if they are empty.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config import BrokerConfig
from kbroker.metadata.controller import Controller
from kbroker.metadata.image import Forwarding, MetadataImage, TopicImage
from kbroker.metadata.topics.closing_checks import first_closing, is_closing_error
from kbroker.queues.closing.closing_control_manager import ClosingControlManager
from kbroker.queues.closing.closing_partitions import ClosingPartitions, too_many_partitions
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers

log = EventLogger("kbroker.closing")

# The time that the leaders have to forward the last records, and the interval between requests to them, in seconds.
MAX_DRAIN_S, RETRY_BACKOFF_S = 5.0, 0.1
# The interval of checks of closing partitions, and the backoff of a topic after a failed removal.
CHECK_INTERVAL_MS, MIN_CHECK_INTERVAL_MS, FAILED_BACKOFF_S = 10_000, 100, 60.0
# How many partitions an error message names.
MAX_NAMED = 5
# The first version with OFFSET_NOT_AVAILABLE, for a leader whose high watermark is still unknown.
LIST_OFFSETS_VERSION = 5
EARLIEST, LATEST = -2, -1
# How long the leaders may take to apply the new leader epoch, in seconds.
MAX_WAIT_S = 10.0


class LeaderOffsets(NamedTuple):
    """The log start offset and log end offset of a leader. `start_epoch`: the leader epoch at the log start offset."""

    start: int
    end: int
    start_epoch: int


class RemovalOutcome(IntEnum):
    REMOVED = 0
    CLOSING = 1
    REOPENED = 2


class PartitionRemoval:
    """Acts only on the controller. `peers` is None if this broker is not a member of a cluster."""

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
        self.closing = ClosingControlManager(controller.context)
        self._config = config
        self._replicas = replicas
        self._peers = peers
        # The loop time before which a topic is not checked again, by topic id.
        self._not_before: dict[bytes, float] = {}
        # The end offsets of retired partitions, and the loop time since which they are unchanged, by topic id.
        self._idle: dict[bytes, tuple[dict[int, int], float]] = {}
        controller.add_reconciled_listener(self.closing.reopen_all)
        # This broker may have become the controller before.
        self.closing.reopen_all()

    async def alter(self, name: str, count: int) -> RemovalOutcome:
        """Close the partitions of a topic from `count` on, or cancel that. Raises KafkaError.

        Retired partitions count as removed.
        """
        topic = self._metadata.topics.get(name)
        first = None if topic is None else first_closing(topic)
        if topic is not None and first is not None:
            if first < topic.listed_partitions:
                return await self._alter_closing(topic, first, count)
            if count >= first:
                raise too_many_partitions(topic)
        return await self._close(name, count)

    async def _alter_closing(self, topic: TopicImage, first: int, count: int) -> RemovalOutcome:
        if count == topic.listed_partitions:
            await self.closing.cancel_closing(topic.name)
            return RemovalOutcome.REOPENED
        if count != first:
            raise is_closing_error(topic, first)
        return RemovalOutcome.REMOVED if await self._retire_if_invisible(topic, first) else RemovalOutcome.CLOSING

    async def _close(self, name: str, count: int) -> RemovalOutcome:
        """Close partitions, and retire them if all are empty."""
        closing = await self.closing.close(name, count)
        try:
            offsets = await self._look_up(closing)
            filled = [(index, row) for index, row in sorted(offsets.items()) if row.start != row.end]
            try:
                await self.closing.begin_closing(closing)
            except KafkaError as error:
                if error.code not in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_PARTITIONS):
                    raise
                if filled:
                    raise _with_offsets(error, filled) from error
                topic = self._metadata.topics_by_id.get(closing.topic_id)
                if topic is None or topic.listed_partitions < len(topic.partitions):
                    raise
                # The partitions are empty, so there is nothing to forward.
                await self.closing.remove(closing)
                return RemovalOutcome.REMOVED
        finally:
            # Does nothing after a removal. The outcome of one that failed may be unknown.
            await self.closing.reopen(closing.topic_id)
        if not filled:
            # If this fails, the periodic check retires them.
            with suppress(KafkaError):
                topic = self._metadata.topics_by_id.get(closing.topic_id)
                if topic is not None and await self._retire_if_invisible(topic, count):
                    return RemovalOutcome.REMOVED
        return RemovalOutcome.CLOSING

    async def _wait_until_drained(
        self, closing: ClosingPartitions, offsets: dict[int, LeaderOffsets]
    ) -> dict[int, LeaderOffsets]:
        """Wait until the leaders have forwarded and deleted the hidden records; return the offsets then.

        Returns after MAX_DRAIN_S at the latest, and at once if there are records that consumers see.
        """
        loop = self._environment.loop
        deadline_s = loop.time() + MAX_DRAIN_S
        while loop.time() < deadline_s and any(row.start != row.end for row in offsets.values()):
            topic = self._metadata.topics_by_id.get(closing.topic_id)
            if topic is None or not _is_invisible(topic, offsets):
                break
            await self._environment.sleep(RETRY_BACKOFF_S)
            offsets = await self._look_up(closing)
        return offsets

    # The periodic check.

    @property
    def is_needed(self) -> bool:
        """Whether partitions are closing."""
        # The highest partition is always one of them.
        topics = self._metadata.topics.values()
        return any(topic.partitions and _is_active(topic.partitions[-1].forwarding) for topic in topics)

    @property
    def interval_ms(self) -> int:
        return min(CHECK_INTERVAL_MS, max(self._config().kbroker_retired_partition_idle_ms, MIN_CHECK_INTERVAL_MS))

    async def check_all(self) -> None:
        """Retire the closing partitions in which consumers see no records any more, and remove idle retired ones."""
        loop = self._environment.loop
        for topic in list(self._metadata.topics.values()):
            if not self._controller.is_elected:
                return
            if not topic.partitions or not _is_active(topic.partitions[-1].forwarding):
                continue
            first = first_closing(topic)
            if first is None or loop.time() < self._not_before.get(topic.topic_id, 0.0):
                continue
            if any(row.leader == NO_LEADER for row in topic.partitions[first:]):
                continue
            try:
                if first < topic.listed_partitions:
                    await self._retire_if_invisible(topic, first)
                elif await self._is_idle(topic, first):
                    await self._remove_idle(topic, first)
            except KafkaError as error:
                log.info("closed partitions not removed yet", topic=topic.name, reason=error)
                # Producers are refused during an attempt, so the next one must not follow soon.
                self._not_before[topic.topic_id] = loop.time() + FAILED_BACKOFF_S

    async def _retire_if_invisible(self, topic: TopicImage, first: int) -> bool:
        if not _is_invisible(topic, await self._look_up(_partitions_from(topic, first))):
            return False
        await self.closing.retire(topic, first)
        log.info("closed partitions retired", topic=topic.name, first=first)
        return True

    async def _is_idle(self, topic: TopicImage, first: int) -> bool:
        """Return whether nothing was appended for kbroker.retired.partition.idle.ms, as this controller has seen it."""
        offsets, now_s = await self._look_up(_partitions_from(topic, first)), self._environment.loop.time()
        ends = {index: row.end for index, row in offsets.items()}
        known_ends, since_s = self._idle.get(topic.topic_id, (None, now_s))
        if ends != known_ends:
            self._idle[topic.topic_id] = ends, now_s
            return False
        return now_s - since_s >= self._config().kbroker_retired_partition_idle_ms / 1000

    async def _remove_idle(self, topic: TopicImage, first: int) -> None:
        closing = await self.closing.close(topic.name, first)
        try:
            offsets = await self._wait_until_drained(closing, await self._look_up(closing))
            if any(row.start != row.end for row in offsets.values()):
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, "A transaction is open, or a target is away.")
            await self.closing.remove(closing)
        finally:
            await self.closing.reopen(closing.topic_id)
        log.info("closed partitions removed", topic=topic.name, first=first)
        self._not_before.pop(topic.topic_id, None)
        self._idle.pop(topic.topic_id, None)

    # The offsets of the leaders.

    async def _look_up(self, closing: ClosingPartitions) -> dict[int, LeaderOffsets]:
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


def _with_offsets(error: KafkaError, filled: list[tuple[int, LeaderOffsets]]) -> KafkaError:
    named = ", ".join(f"{index} (offsets {row.start} to {row.end - 1})" for index, row in filled[:MAX_NAMED])
    others = f" and {len(filled) - MAX_NAMED} more" if len(filled) > MAX_NAMED else ""
    return KafkaError(error.code, f"{error.message} These partitions have records: {named}{others}.")


def _partitions_from(topic: TopicImage, first: int) -> ClosingPartitions:
    rows = enumerate(topic.partitions[first:], first)
    return ClosingPartitions(
        topic.name, topic.topic_id, first, {index: (row.leader, row.leader_epoch) for index, row in rows}
    )


def _is_active(forwarding: Forwarding | None) -> bool:
    return forwarding is not None and forwarding.is_active


def _is_invisible(topic: TopicImage, offsets: dict[int, LeaderOffsets]) -> bool:
    """Return whether consumers see no records in these closing partitions."""
    for index, row in offsets.items():
        forwarding = topic.partitions[index].forwarding if index < len(topic.partitions) else None
        if row.start != row.end and (forwarding is None or row.start_epoch < forwarding.closed_epoch):
            return False
    return True
