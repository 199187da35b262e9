"""Reports logs that have failed to the controller, so that other replicas lead (KIP-858).

A log whose disk has failed is offline until a restart; one that cannot be opened, until an attempt succeeds. Without a
report, a leader with such a log would refuse every request, although other replicas have all records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.messages.k73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
)

if TYPE_CHECKING:
    from kbroker.metadata.image import MetadataImage
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.isr")

# Kafka's id of a log directory that is not available (DirectoryId.LOST).
LOST_DIRECTORY = bytes(15) + b"\1"
# The interval at which logs are checked. Kafka's brokers report theirs with their next heartbeat, every 2 s.
PERIOD_MS = 1_000

Send = Callable[[AssignReplicasToDirsRequest], Awaitable[None]]


class FailedLogReporter:
    """Repeats a report until the image has its effect. `send` sends a request to the controller, and never raises."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        metadata: MetadataImage,
        broker_epoch: Callable[[], int],
        send: Send,
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._broker_epoch = broker_epoch
        self._send = send
        self._task = PeriodicTask(environment, "failed logs", lambda: PERIOD_MS, self.report)

    def start(self) -> None:
        self._task.schedule()

    async def stop(self) -> None:
        await self._task.stop()

    async def report(self) -> None:
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
        directory = AssignReplicasToDirsRequestDirectory(id=LOST_DIRECTORY, topics=rows)
        await self._send(
            AssignReplicasToDirsRequest(
                broker_id=self._replicas.node_id, broker_epoch=self._broker_epoch(), directories=[directory]
            )
        )

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
