"""LogRecoveryManager: the controller compares the logs of partitions whose leader is unknown, and elects the best.

It runs after each reconciliation, until no partition waits any more. It asks all brokers, since a log may be on a
broker that the metadata do not know as a replica. A broker that does not respond is waited for; after WAIT_S the others
suffice if one of them must have all committed records. Otherwise the operator decides (ElectLeaders, unclean).

OlderMetadata notices that the metadata are older than what brokers have seen, and begins the recovery of all
partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordination.interface import CoordinationError, Set, batches
from kbroker.metadata.control_manager import ControllerContext, ControlManager
from kbroker.metadata.recovery.log_recovery import (
    MAX_UNSEEN_CHANGES,
    ReadLogs,
    ReplicaLog,
    begin_recovery,
    needs_recovery,
    recover,
    unseen_producer_id,
)
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import Election
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.coordination.interface import Op
    from kbroker.metadata.image import BrokerNode, KnownBroker, SeenMetadata
    from kbroker.metadata.replication.broker_changes import BrokerChanges

log = EventLogger("kbroker.metadata")

# The topic id and the index of a partition.
Key = tuple[bytes, int]
# The logs of partitions on the brokers that have responded: None if there is none. One that cannot be read is missing.
LogsByBroker = Mapping[int, Mapping[Key, ReplicaLog | None]]
ReadReplicaLogs = Callable[[Collection[int], Sequence[Key]], Awaitable[LogsByBroker]]

# The time in seconds in which all brokers should respond, and the interval of attempts.
WAIT_S = 10.0
RETRY_S = 1.0
# The time in which the brokers should register again that had registrations when all sessions ended, in seconds.
FORMER_BROKERS_S = 10.0
# The most partitions that a message names.
MAX_NAMED = 5


class LogRecoveryManager(ControlManager):
    """`read_logs`: see Controller.use_reports."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self.read_logs: ReadReplicaLogs = _read_nothing
        self._task: Task[None] | None = None
        # Done when brokers have registered since, or an operator has decided.
        self._changed: Future[None] | None = None
        self._wait_until = 0.0
        self._reported: frozenset[Key] = frozenset()

    def start(self) -> None:
        """Recover the partitions that wait for it, in the background."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        if self._task is None and self._pending():
            self._task = self._loop.create_task(self._run())

    def _pending(self) -> list[Key]:
        return [
            (topic_id, index)
            for _, topic_id, index, partition in ChunkDraft(self._loader.chunks).partitions()
            if partition.is_recovering
        ]

    async def _run(self) -> None:
        self._wait_until = self._loop.time() + WAIT_S
        try:
            while self._writer.is_elected and (pending := self._pending()):
                self._changed = self._loop.create_future()
                try:
                    responding = await self._recover(pending)
                    self._report(responding)
                except (KafkaError, CoordinationError) as error:
                    log.info("partitions not recovered yet", reason=error)
                except Exception as error:
                    log.failure("partitions not recovered yet", error)
                if not self._pending():
                    continue
                timer = self._loop.call_later(RETRY_S, self._wake)
                await self._changed
                timer.cancel()
        finally:
            self._task = self._changed = None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def force(self, requested: Sequence[TopicPartition] | None) -> list[TopicPartition]:
        """Elect the best of the logs that can be read, for partitions that wait (None: all). Returns those elected.

        Raises KafkaError.
        """
        topics = self._image.topics
        ids = {topic.topic_id: name for name, topic in topics.items()}
        waiting = {key: TopicPartition(ids[key[0]], key[1]) for key in self._pending() if key[0] in ids}
        chosen = [key for key, named in waiting.items() if requested is None or named in requested]
        if not chosen or not self._writer.is_elected:
            return []
        await self._recover(chosen, forced=chosen)
        left = set(self._pending())
        return [waiting[key] for key in chosen if key not in left]

    async def _recover(self, keys: Sequence[Key], forced: Container[Key] = ()) -> Collection[int]:
        """Elect leaders for the partitions whose logs suffice. Returns the brokers that have responded.

        Raises KafkaError.
        """
        known = self._loader.registrations
        epochs = {broker: known[broker].registration.epoch for broker in acceptable_leaders(known)}
        read = await self.read_logs(epochs.keys(), keys)
        async with self._lock:
            await self._writer.prepare()
            known = self._loader.registrations
            # A broker that has registered again may have lost the end of its logs.
            acceptable = acceptable_leaders(known)
            read = {
                broker: logs
                for broker, logs in read.items()
                if broker in acceptable and known[broker].registration.epoch == epochs[broker]
            }
            draft = ChunkDraft(self._loader.chunks)
            is_complete = self._loop.time() >= self._wait_until
            for topic_id, index in keys:
                found = draft.find(topic_id, index)
                if found is None or not found[1].is_recovering:
                    continue
                number, partition = found
                rules = self._rules(topic_id)
                key = topic_id, index
                logs = {broker: own[key] for broker, own in read.items() if key in own}
                is_forced = key in forced or (is_complete and rules.election is Election.UNCLEAN)
                recovered = recover(
                    partition,
                    ReadLogs(logs, known.keys(), is_complete, is_forced),
                    acceptable,
                    rules.min_insync_replicas,
                )
                draft.replace(number, topic_id, index, recovered)
            await self._writer.commit_all(draft.ops())
        return read.keys()

    def _report(self, responding: Collection[int]) -> None:
        pending = self._pending()
        if not pending:
            log.warning("all partitions are recovered: the best log of each one leads")
        elif self._loop.time() >= self._wait_until and self._reported != frozenset(pending):
            names = {topic.topic_id: name for name, topic in self._image.topics.items()}
            log.error(
                "partitions have no leader, since the brokers that respond may lack committed records: start the "
                "others, or elect leaders (kafka-leader-election --election-type unclean), which may lose records",
                partitions=len(pending),
                first=[f"{names.get(topic_id, topic_id.hex())}-{index}" for topic_id, index in pending[:MAX_NAMED]],
                missing=sorted(set(self._loader.registrations) - set(responding)),
            )
        self._reported = frozenset(pending)


async def _read_nothing(brokers: Collection[int], keys: Sequence[Key]) -> LogsByBroker:
    return {}


class OlderMetadata(ControlManager):
    """Notices an older copy. ReplicationControlManager calls it with the lock held and the writer prepared."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        # The controller epoch in which the former brokers are waited for, and until when.
        self._waiting_epoch, self._wait_until = 0, 0.0

    def wait_for_former_brokers(self, known: Mapping[int, KnownBroker], changes: BrokerChanges) -> None:
        """Raise KafkaError while brokers are waited for, after all of them have lost their sessions.

        This broker has been elected with a new registration, so none has gone on with its former one; if it is new in
        the cluster, the others show that. The coordination service may have been restored from an older copy, and only
        a broker that was up until then may know. That may be one that is fenced in the copy, if it could be elected:
        it may have been started when all others were stopped.
        """
        own, epoch = self._writer.node_id, self._writer.epoch
        former = {id for id, broker in known.items() if not broker.fenced} - changes.restarted.keys()
        if own not in changes.restarted or (own not in known and not changes.fenced.keys() >= former):
            return
        eligible = {id for _, row in self._image.partitions() for id in (*row.elr, *row.last_known_elr)}
        awaited = sorted((former | eligible & known.keys()) - changes.restarted.keys())
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
        self, newer: Sequence[SeenMetadata], leaving: Sequence[Op], entering: Sequence[Op]
    ) -> None:
        """Let all partitions wait for the logs of their replicas (log_recovery.py), and fence and unfence brokers.

        The last multi also says that the recovery has begun. If it is not reached, the next controller begins again.
        """
        number = self._loader.change_log.number
        draft = ChunkDraft(self._loader.chunks)
        for chunk, topic_id, index, partition in draft.partitions():
            draft.replace(chunk, topic_id, index, begin_recovery(partition, newer))
        node = await self._writer.coordination.get(znodes.PRODUCER_IDS)
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
