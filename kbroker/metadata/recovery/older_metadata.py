"""Notices that the metadata are older than what brokers have seen, and begins the recovery of all partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.coordination.interface import Set, batches
from kbroker.metadata.recovery.log_recovery import (
    MAX_UNSEEN_CHANGES,
    begin_recovery,
    needs_recovery,
    unseen_producer_id,
)
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from kbroker.coordination.interface import Coordination, Op
    from kbroker.metadata.image import BrokerNode, KnownBroker, SeenMetadata
    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.metadata.metadata_writer import MetadataWriter
    from kbroker.metadata.replication.broker_changes import BrokerChanges

log = EventLogger("kbroker.metadata")

# The time in which the brokers should register again that had registrations when all sessions ended, in seconds.
FORMER_BROKERS_S = 10.0


class OlderMetadata:
    """Part of ReplicationControlManager, which calls it with the lock held and the writer prepared."""

    def __init__(self, loader: MetadataLoader, writer: MetadataWriter, loop: AbstractEventLoop) -> None:
        self._loader = loader
        self._writer = writer
        self._loop = loop
        # The controller epoch in which the former brokers are waited for, and until when.
        self._waiting_epoch, self._wait_until = 0, 0.0

    def wait_for_former_brokers(self, known: Mapping[int, KnownBroker], changes: BrokerChanges) -> None:
        """Raise KafkaError while brokers are waited for, after all of them have lost their sessions.

        This broker has been elected with a new registration, so none has gone on with its former one. The coordination
        service may have been restored from an older copy, and only a broker that was up until then may know.
        """
        own, epoch = self._writer.node_id, self._writer.epoch
        if own not in changes.restarted or own not in known:
            return
        awaited = [id for id, broker in known.items() if not broker.fenced and id not in changes.restarted]
        if self._waiting_epoch != epoch:
            self._waiting_epoch, self._wait_until = epoch, self._loop.time() + FORMER_BROKERS_S
        if awaited and self._loop.time() < self._wait_until:
            message = f"brokers {awaited} were registered when all sessions ended: waiting for them at first"
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)

    async def seen_by_brokers(self, nodes: Mapping[int, BrokerNode], changes: BrokerChanges) -> list[SeenMetadata]:
        """Return what new registrations have seen that the metadata lack: an older copy of them was restored.

        Raises KafkaError.
        """

        def newer() -> list[SeenMetadata]:
            seen = (nodes[broker_id].seen for broker_id in changes.restarted)
            return [each for each in seen if needs_recovery(each, self._loader.change_log)]

        if newer():
            # This broker may merely not have read the changes of a later controller.
            await self._writer.refresh()
        return newer()

    async def begin_recovery(
        self, coordination: Coordination, newer: Sequence[SeenMetadata], leaving: Sequence[Op], entering: Sequence[Op]
    ) -> None:
        """Let all partitions wait for the logs of their replicas (log_recovery.py), and fence and unfence brokers.

        The last multi also says that the recovery has begun. If it is not reached, the next controller begins again.
        """
        number = self._loader.change_log.number
        draft = ChunkDraft(self._loader.chunks)
        for chunk, topic_id, index, partition in draft.partitions():
            draft.replace(chunk, topic_id, index, begin_recovery(partition, newer))
        node = await coordination.get(znodes.PRODUCER_IDS)
        next_id = unseen_producer_id(newer, znodes.decode(znodes.PRODUCER_IDS, node.data)["next"])
        ids = Set(znodes.PRODUCER_IDS, znodes.encode({"next": next_id}))
        *earlier, last = batches([*leaving, *draft.ops(), ids, *entering])
        for batch in earlier:
            await self._writer.write(batch)
        seen = max(each.number for each in newer)
        self._writer.begin_history(seen + MAX_UNSEEN_CHANGES)
        await self._writer.write(last)
        log.error(
            "the coordination service has older metadata than brokers have seen: its data was restored from a copy. No "
            "partition has a leader until the logs of its replicas are compared",
            last_change=number, last_change_seen=seen,
        )  # fmt: skip
