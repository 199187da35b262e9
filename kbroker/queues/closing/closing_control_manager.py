"""ClosingControlManager: closes, retires, removes and reopens partitions in the coordination service.

The decisions are in closing_partitions.py.
"""

from __future__ import annotations

from asyncio import sleep
from dataclasses import replace
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.coordination.interface import MULTI_BYTES, Set
from kbroker.metadata.control_manager import ControllerContext, ControlManager
from kbroker.metadata.image import is_retired
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.topics.closing_checks import check_not_closing, with_closing, without_forwarding
from kbroker.queues.closing.closing_partitions import (
    ClosingPartitions,
    check_forwarding,
    check_removal,
    check_still_closing,
    with_forwarding,
    with_retirement,
)
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.metadata.image import Forwarding, TopicImage

log = EventLogger("kbroker.controller")

# Backoff before the next attempt to reopen partitions, in seconds.
RETRY_BACKOFF_S = 0.5


class ClosingControlManager(ControlManager):
    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        # The topics whose partitions this controller is removing.
        self._running: set[bytes] = set()
        self._reopening: set[Task[None]] = set()

    async def close(self, name: str, count: int) -> ClosingPartitions:
        """Make partitions from `count` on refuse records, until the caller calls `reopen`. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            topic = self._image.topics.get(name)
            check_removal(name, count, topic, self._loader.reassignment_plan.is_active)
            assert topic is not None
            await self._write(topic, count, True)
            topic = self._image.topics[name]
            rows = enumerate(topic.partitions[count:], count)
            self._running.add(topic.topic_id)
            leaders = {index: (row.leader, row.leader_epoch) for index, row in rows}
            return ClosingPartitions(name, topic.topic_id, count, leaders)

    async def begin_closing(self, closing: ClosingPartitions) -> None:
        """Make closing partitions accept records again, and forward them to the other partitions. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            topic = self._image.topics_by_id.get(closing.topic_id)
            check_still_closing(closing, topic)
            assert topic is not None
            check_forwarding(topic, closing.first, TopicConfig.of(topic.configs, self._config().topic_defaults))
            draft = ChunkDraft(self._loader.chunks)
            for number, topic_id, index, row in list(draft.partitions_of(topic.topic_id)):
                if is_retired(row):
                    draft.replace(number, topic_id, index, with_closing(row, False))
                elif index >= closing.first:
                    draft.replace(number, topic_id, index, with_forwarding(row, index, closing.first))
            await self._writer.commit(draft.ops())
        await self._loader.wait_if_alone()

    async def cancel_closing(self, name: str) -> None:
        """Make the closing partitions of a topic keep their records again, except retired ones. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            topic = self._image.topics.get(name)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            check_not_closing(topic)
            draft = ChunkDraft(self._loader.chunks)
            for number, topic_id, index, row in list(draft.partitions_of(topic.topic_id)):
                if row.forwarding is not None and row.forwarding.is_active and not row.forwarding.is_retired:
                    draft.replace(number, topic_id, index, without_forwarding(row))
            await self._writer.commit(draft.ops())
        await self._loader.wait_if_alone()

    async def retire(self, topic: TopicImage, first: int) -> None:
        """Retire the closing partitions of a topic from `first` on, unless they differ from those in `topic`.

        Raises KafkaError.
        """
        async with self._lock:
            await self._writer.prepare()
            current = self._image.topics_by_id.get(topic.topic_id)
            if current is None or _forwardings(current, first) != _forwardings(topic, first):
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The closing was cancelled meanwhile.")
            check_not_closing(current)
            draft = ChunkDraft(self._loader.chunks)
            for number, topic_id, index, row in list(draft.partitions_of(topic.topic_id)):
                if index >= first:
                    draft.replace(number, topic_id, index, with_retirement(row))
            await self._writer.commit(draft.ops())
        await self._loader.wait_if_alone()

    async def remove(self, closing: ClosingPartitions) -> None:
        """Remove closing partitions that are empty in these leader epochs. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            check_still_closing(closing, self._image.topics_by_id.get(closing.topic_id))
            draft = ChunkDraft(self._loader.chunks)
            draft.remove_from(closing.topic_id, closing.first)
            epoch = 1 + max(leader_epoch for _, leader_epoch in closing.leaders.values())
            node = self._loader.topics[closing.name]
            node = replace(
                node,
                removed_from=closing.first,
                first_leader_epoch=max(epoch, node.first_leader_epoch),
                # Members may still have partitions that were removed earlier.
                removed_to=max(closing.first + len(closing.leaders), node.removed_to or 0),
            )
            await self._writer.commit([*draft.ops(), Set(znodes.topic_path(closing.name), znodes.encode_topic(node))])
        await self._loader.wait_if_alone()

    async def reopen(self, topic_id: bytes) -> None:
        """Reopen the partitions of a topic that refuse records, if there are any.

        Retries until it succeeds or another broker is the controller, which then calls `reopen_all`.
        """
        try:
            while self._writer.is_elected:
                try:
                    async with self._lock:
                        await self._writer.prepare()
                        topic = self._image.topics_by_id.get(topic_id)
                        if topic is not None and any(row.is_closing for row in topic.partitions):
                            await self._write(topic, 0, False)
                    return
                except KafkaError as error:
                    log.warning("partitions not reopened", topic=topic_id.hex(), reason=error)
                await sleep(RETRY_BACKOFF_S)
        finally:
            self._running.discard(topic_id)

    def reopen_all(self) -> None:
        """Reopen the partitions that a former controller has closed. Called when the image is up to date."""
        if not self._writer.is_elected:
            return
        for topic in self._image.topics.values():
            # The highest partition is always one of them.
            if topic.partitions and topic.partitions[-1].is_closing and topic.topic_id not in self._running:
                self._running.add(topic.topic_id)
                task = self._loop.create_task(self.reopen(topic.topic_id))
                self._reopening.add(task)
                task.add_done_callback(self._reopening.discard)

    async def _write(self, topic: TopicImage, first: int, is_closing: bool) -> None:
        """Close the partitions from `first` on, or reopen those that are closing. Raises KafkaError."""
        draft = ChunkDraft(self._loader.chunks)
        for number, topic_id, index, row in list(draft.partitions_of(topic.topic_id)):
            if index >= first and row.is_closing != is_closing:
                draft.replace(number, topic_id, index, with_closing(row, is_closing))
                if is_closing and draft.max_bytes > MULTI_BYTES:
                    raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        await self._writer.commit(draft.ops())


def _forwardings(topic: TopicImage, first: int) -> list[Forwarding | None]:
    return [row.forwarding for row in topic.partitions[first:]]
