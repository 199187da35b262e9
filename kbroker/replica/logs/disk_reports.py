"""Reports to the controller: logs that have failed (KIP-858), and whether this broker can write to its disk.

A log whose disk has failed is offline until a restart; one that cannot be opened, until an attempt succeeds. Without a
report, a leader with such a log would refuse every request, although other replicas have all records.

Both reports are AssignReplicasToDirs requests. That of the write health (metadata/replication/partition_requests.py)
has one of kbroker's own directory ids, which stands for it. A controller of an older version ignores directory ids that
it does not know.
"""

from collections.abc import Awaitable, Callable, Iterator

from kbroker.metadata.image import MetadataImage, WriteHealth
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.messages.k73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
)

log = EventLogger("kbroker.isr")

# Kafka's id of a log directory that is not available (DirectoryId.LOST).
LOST_DIRECTORY = bytes(15) + b"\1"
# The interval at which logs are checked. Kafka's brokers report theirs with their next heartbeat, every 2 s.
PERIOD_MS = 1_000

Send = Callable[[AssignReplicasToDirsRequest], Awaitable[None]]


# The directory id of each write health.
DIRECTORY_IDS = {health: f"kbroker writes {health:d}".encode() for health in WriteHealth}


class DiskReporter:
    """Repeats each report until the image has its effect. `send` sends a request to the controller, never raises."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        metadata: MetadataImage,
        broker_epoch: Callable[[], int],
        send: Send,
    ) -> None:
        self._replicas = replicas
        self._monitor = replicas.write_health
        self._metadata = metadata
        self._broker_epoch = broker_epoch
        self._send = send
        self._has_changed = self._is_sending = False
        self._tasks = [
            PeriodicTask(environment, "failed logs", lambda: PERIOD_MS, self.report_logs),
            PeriodicTask(environment, "write health", lambda: PERIOD_MS, self.report_health),
            PeriodicTask(environment, "new write health", lambda: 0, self.report_health, lambda: self._has_changed),
        ]

    def start(self) -> None:
        self._monitor.report_to(self._on_change)
        for task in self._tasks:
            task.schedule()

    async def stop(self) -> None:
        for task in self._tasks:
            await task.stop()

    async def _report(self, directory: AssignReplicasToDirsRequestDirectory) -> None:
        await self._send(
            AssignReplicasToDirsRequest(
                broker_id=self._replicas.node_id, broker_epoch=self._broker_epoch(), directories=[directory]
            )
        )

    # Failed logs.

    async def report_logs(self) -> None:
        """Report the failed logs whose replicas are in sync according to the image."""
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in self._failed():
            if self._can_be_replaced(topic_id, index):
                topics.setdefault(topic_id, []).append(index)
        if not topics or self._broker_epoch() < 0:
            return
        log.warning("failed logs are reported to the controller", partitions=sum(map(len, topics.values())))
        rows = [
            AssignReplicasToDirsRequestTopic(
                topic_id=topic_id,
                partitions=[AssignReplicasToDirsRequestPartition(partition_index=index) for index in indexes],
            )
            for topic_id, indexes in topics.items()
        ]
        await self._report(AssignReplicasToDirsRequestDirectory(id=LOST_DIRECTORY, topics=rows))

    def _failed(self) -> Iterator[tuple[bytes, int]]:
        for partition in self._replicas.partitions.values():
            if partition.log.health.offline is not None:
                yield partition.topic_id, partition.tp.partition
        for tp, topic_id in self._replicas.maintenance.unopened.items():
            yield topic_id, tp.partition

    def _can_be_replaced(self, topic_id: bytes, index: int) -> bool:
        """Return whether the replica is in sync, and another one, too."""
        topic = self._metadata.topics_by_id.get(topic_id)
        if topic is None or index >= len(topic.partitions):
            return False
        isr = topic.partitions[index].isr
        return len(isr) > 1 and self._replicas.node_id in isr

    # The write health.

    def _on_change(self) -> None:
        self._has_changed = True
        self._tasks[2].schedule()

    async def report_health(self) -> None:
        """Report the write health, unless the image shows that the controller has acted on it."""
        self._has_changed = False
        health = self._monitor.health
        if self._broker_epoch() < 0 or self._is_sending or not self._is_needed(health):
            return
        self._is_sending = True
        try:
            await self._report(AssignReplicasToDirsRequestDirectory(id=DIRECTORY_IDS[health]))
        finally:
            self._is_sending = False

    def _is_needed(self, health: WriteHealth) -> bool:
        broker = self._metadata.brokers.get(self._replicas.node_id)
        if broker is None:
            return False
        return broker.write_health is not health or (health is WriteHealth.FAILING and self._can_give_up())

    def _can_give_up(self) -> bool:
        """Return whether this broker is in an ISR with one that can write."""
        node_id, brokers = self._replicas.node_id, self._metadata.brokers
        able = {
            broker.id
            for broker in brokers.values()
            if broker.write_health is not WriteHealth.FAILING and not broker.in_controlled_shutdown
        }
        for partition in self._replicas.partitions.values():
            registration = self._metadata.partition(*partition.tp)
            if registration is not None and node_id in registration.isr and not able.isdisjoint(registration.isr):
                return True
        return False
