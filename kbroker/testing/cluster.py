"""A cluster for tests, `kbroker.testing.Cluster`: its brokers are threads, and share a coordination store."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from random import SystemRandom
from time import monotonic, sleep
from typing import Any, TypeVar

from kbroker.client.admin import describe_topics
from kbroker.client.requests import check
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.interface import Coordination
from kbroker.runtime.environment import Environment
from kbroker.testing.broker_thread import BrokerThread
from kbroker.testing.clock import MovableClock, MovableLoop, Threads
from kbroker.testing.disk import ControlledDisk, DiskControl
from kbroker.testing.kafka import TIMEOUT_S, Kafka
from kbroker.testing.records import POLL_S
from kbroker.testing.remote_session import RemoteSession
from protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

T = TypeVar("T")

MAX_BROKERS = 16


class SharedStore:
    """The coordination store, in a thread with an event loop in real time."""

    def __init__(self, directory: str) -> None:
        self.loop = MovableLoop(MovableClock())
        self._threads = Threads(self.loop)
        environment = Environment(
            loop=self.loop,
            clock=self.loop.clock,
            disk=ControlledDisk(DiskControl()),
            random=SystemRandom(),
            offload=self._threads,
            process_runner=_no_processes,
        )
        self._thread = threading.Thread(target=self.loop.run_forever, name="kbroker-testing-store", daemon=True)
        self._thread.start()
        self._store = self._run(EmbeddedStore.open(environment, directory))
        self._sessions: dict[int, EmbeddedSession] = {}

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def open_session(self, broker_id: int) -> Coordination:
        """Called on the loop of a broker, whose former session ends."""

        async def open_here() -> EmbeddedSession:
            await self._end(broker_id)
            session = self._sessions[broker_id] = self._store.session()
            return session

        session = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(open_here(), self.loop))
        return RemoteSession(session, self.loop, asyncio.get_running_loop())

    async def _end(self, broker_id: int) -> None:
        session = self._sessions.pop(broker_id, None)
        if session is not None:
            await session.close()

    def end_session(self, broker_id: int) -> None:
        self._run(self._end(broker_id))

    def close(self) -> None:
        self._run(self._store.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self._threads.stop()
        self.loop.close()


def _no_processes(job: object, task: object) -> Any:
    raise NotImplementedError("the store runs no processes")


class InProcessCluster(Kafka):
    """Brokers with the ids 1, 2, ..., on one clock. `disks`: by broker id; each has fill() and free()."""

    def __init__(
        self,
        brokers: int = 3,
        configs: Mapping[str, Any] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        if not 1 <= brokers <= MAX_BROKERS:
            raise ValueError(f"a cluster has 1 to {MAX_BROKERS} brokers")
        factor = str(min(3, brokers))
        defaults = {
            "default.replication.factor": factor,
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": str(min(2, brokers)),
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": str(min(2, brokers)),
        }
        super().__init__({**defaults, **(configs or {})}, directory)
        self.disks = {broker_id: DiskControl() for broker_id in range(1, brokers + 1)}
        self._ports = dict.fromkeys(self.disks, 0)
        self._threads: dict[int, BrokerThread] = {}
        self._store: SharedStore | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def running(self) -> list[BrokerThread]:
        self._check_process()
        return list(self._threads.values())

    def open(self) -> None:
        directory = self._open_directory()
        try:
            self._store = SharedStore(os.path.join(directory, "coordination"))
            for broker_id in self.disks:
                self.start(broker_id)
            self._create_internal_topics()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._pid == os.getpid():
            # Without controlled shutdowns: nobody is left to take over.
            for broker_id in list(self._threads):
                self.kill(broker_id)
            if self._store is not None:
                self._store.close()
                self._store = None
        self._remove_directory()

    def start(self, broker_id: int) -> None:
        """Start a broker again, on its port and with its data. No effect while it runs."""
        self._check_process()
        store = self._store
        assert store is not None, "the cluster is closed"
        if broker_id in self._threads:
            return
        configs = {
            **self._configs,
            "node.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}",
            "kbroker.inter.broker.listener": "127.0.0.1:0",
            "log.dirs": os.path.join(self._directory, f"broker-{broker_id}"),
        }
        thread = self._threads[broker_id] = BrokerThread(
            configs, self.movable_clock, self.disks[broker_id], self.request_log, lambda: store.open_session(broker_id)
        )
        self._ports[broker_id] = int(thread.bootstrap.rpartition(":")[2])

    def stop(self, broker_id: int) -> None:
        """Stop a broker as an operator does: others take over first."""
        self._check_process()
        if (thread := self._threads.pop(broker_id, None)) is not None:
            thread.stop()

    def kill(self, broker_id: int) -> None:
        """Kill a broker. The others notice it at once."""
        self._check_process()
        if (thread := self._threads.pop(broker_id, None)) is not None:
            thread.kill()
            assert self._store is not None
            self._store.end_session(broker_id)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker id of the leader, -1 if there is none. Raises BrokerError."""
        with self.client() as cluster:
            found = describe_topics(cluster, [topic])[0]
            check(found.error_code, f"topic {topic}")
            return next(row.leader_id for row in found.partitions if row.partition_index == partition)

    def move_leader(self, topic: str, partition: int, *, to: int, timeout_s: float = TIMEOUT_S) -> None:
        """Make a broker the leader of a partition, with a replica first if it has none, and wait until it is.

        Raises BrokerError, TimeoutError.
        """
        with self.client() as cluster:
            row = next(
                row for row in describe_topics(cluster, [topic])[0].partitions if row.partition_index == partition
            )
            kept = [replica for replica in row.replica_nodes if replica != to]
            replicas = [to, *(kept if to in row.replica_nodes else kept[1:])]
            moved = ReassignablePartition(partition_index=partition, replicas=replicas)
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=10_000, topics=[ReassignableTopic(name=topic, partitions=[moved])]
            )
            response = cluster.request(request, AlterPartitionReassignmentsResponse)
            check(response.error_code, f"{topic}-{partition}", response.error_message)
            result = response.responses[0].partitions[0]
            check(result.error_code, f"{topic}-{partition}", result.error_message)
            deadline = monotonic() + timeout_s
            election = ElectLeadersRequest(
                election_type=0,
                timeout_ms=10_000,
                topic_partitions=[TopicPartitions(topic=topic, partitions=[partition])],
            )
            while self.leader(topic, partition) != to:
                if monotonic() > deadline:
                    raise TimeoutError(f"broker {to} does not lead {topic}-{partition} after {timeout_s} s")
                sleep(POLL_S)
                cluster.request(election, ElectLeadersResponse)
