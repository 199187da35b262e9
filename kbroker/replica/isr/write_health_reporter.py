"""Reports to the controller whether this broker can write to its disk: see metadata/replication/alter_partition.py.

The report is an AssignReplicasToDirs request with one of kbroker's own directory ids, which stands for the write
health. A controller of an older version ignores directory ids that it does not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kbroker.metadata.image import WriteHealth
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.messages.k73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
)

if TYPE_CHECKING:
    from kbroker.metadata.image import MetadataImage
    from kbroker.replica.logs.write_health_monitor import WriteHealthMonitor
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.isr")

PERIOD_MS = 1_000
# The directory id of each write health.
DIRECTORY_IDS = {health: f"kbroker writes {health:d}".encode() for health in WriteHealth}

Send = Callable[[AssignReplicasToDirsRequest], Awaitable[None]]


class WriteHealthReporter:
    """Repeats a report until the image has its effect. `send` sends a request to the controller, and never raises."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        monitor: WriteHealthMonitor,
        metadata: MetadataImage,
        broker_epoch: Callable[[], int],
        send: Send,
    ) -> None:
        self._replicas = replicas
        self._monitor = monitor
        self._metadata = metadata
        self._broker_epoch = broker_epoch
        self._send = send
        self._tasks = [
            PeriodicTask(environment, "write health", lambda: PERIOD_MS, self.report),
            PeriodicTask(environment, "new write health", lambda: 0, self.report, lambda: self._has_changed),
        ]
        self._has_changed = False
        self._is_sending = False

    def start(self) -> None:
        self._monitor.on_change = self._on_change
        self._tasks[0].schedule()

    async def stop(self) -> None:
        for task in self._tasks:
            await task.stop()

    def _on_change(self) -> None:
        self._has_changed = True
        self._tasks[1].schedule()

    async def report(self) -> None:
        """Report the write health, unless the image shows that the controller has acted on it."""
        self._has_changed = False
        epoch, health = self._broker_epoch(), self._monitor.health
        if epoch < 0 or self._is_sending or not self._is_needed(health):
            return
        self._is_sending = True
        try:
            directory = AssignReplicasToDirsRequestDirectory(id=DIRECTORY_IDS[health])
            await self._send(
                AssignReplicasToDirsRequest(
                    broker_id=self._replicas.node_id, broker_epoch=epoch, directories=[directory]
                )
            )
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
