"""A cluster for tests, `kbroker.testing.Cluster`: its brokers are threads, and share a coordination store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from functools import partial
from time import monotonic, sleep
from typing import Any, cast

from kbroker.client.admin import describe_topics
from kbroker.client.requests import check
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.interface import Coordination
from kbroker.metadata.coordination_sessions import OpenSession
from kbroker.testing.broker_thread import BrokerThread, LoopThread
from kbroker.testing.clock import MovableClock
from kbroker.testing.disk import DiskControl
from kbroker.testing.kafka import POLL_S, TIMEOUT_S, Kafka
from kbroker.testing.remote_session import RemoteSession
from protocol.messages.k43_elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

MAX_BROKERS = 16


class SharedStore(LoopThread):
    """The coordination store, in a thread with an event loop in real time."""

    def __init__(self, directory: str) -> None:
        super().__init__("kbroker-testing-store", MovableClock(), DiskControl())
        self._store = self.run(EmbeddedStore.open(self.environment, directory))
        self._sessions: dict[int, EmbeddedSession] = {}

    async def open_session(self, broker_id: int) -> Coordination:
        """Called on the loop of a broker, whose former session ends."""

        async def open_here() -> EmbeddedSession:
            await self._end_session(broker_id)
            session = self._sessions[broker_id] = self._store.session()
            return session

        session = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(open_here(), self.loop))
        return cast(Coordination, RemoteSession(session, self.loop, asyncio.get_running_loop()))

    async def _end_session(self, broker_id: int) -> None:
        session = self._sessions.pop(broker_id, None)
        if session is not None:
            await session.close()

    def end_session(self, broker_id: int) -> None:
        self.run(self._end_session(broker_id))

    def close(self) -> None:
        self.run(self._store.close())
        self.end()


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
        factor, min_isr = min(3, brokers), min(2, brokers)
        defaults = {
            "default.replication.factor": factor,
            "kbroker.inter.broker.listener": "127.0.0.1:0",
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": min_isr,
            "share.coordinator.state.topic.replication.factor": factor,
            "share.coordinator.state.topic.min.isr": min_isr,
        }
        super().__init__({**defaults, **(configs or {})}, directory, brokers)
        self._store: SharedStore | None = None

    def close(self) -> None:
        if self._pid == os.getpid() and self._store is not None:
            # Without controlled shutdowns: nobody is left to take over.
            for broker_id in list(self._threads):
                self.kill(broker_id)
            self._store.close()
            self._store = None
        super().close()

    def _broker_configs(self, broker_id: int) -> Mapping[str, str]:
        return {"node.id": str(broker_id), "log.dirs": os.path.join(self._directory, f"broker-{broker_id}")}

    def _open_session(self, broker_id: int) -> OpenSession:
        if self._store is None:
            self._store = SharedStore(os.path.join(self._directory, "coordination"))
        return partial(self._store.open_session, broker_id)

    def start(self, broker_id: int) -> None:
        """Start a broker again, on its port and with its data. No effect while it runs."""
        self._start(broker_id)

    def stop(self, broker_id: int) -> None:
        """Stop a broker as an operator does: others take over first."""
        self._end(broker_id, BrokerThread.stop)

    def kill(self, broker_id: int) -> None:
        """Kill a broker. The others notice it at once."""
        if self._end(broker_id, BrokerThread.kill):
            assert self._store is not None
            self._store.end_session(broker_id)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker id of the leader, -1 if there is none. Raises BrokerError."""
        with self.client() as cluster:
            return cluster.topic(topic).leaders.get(partition, -1)

    def move_leader(self, topic: str, partition: int, *, to: int, timeout_s: float = TIMEOUT_S) -> None:
        """Make a broker the leader of a partition, with a replica first if it has none, and wait until it is.

        Raises BrokerError, TimeoutError.
        """
        with self.client() as cluster:
            (row,) = (
                each for each in describe_topics(cluster, [topic])[0].partitions if each.partition_index == partition
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
            rows = [TopicPartitions(topic=topic, partitions=[partition])]
            election = ElectLeadersRequest(election_type=0, timeout_ms=10_000, topic_partitions=rows)
            deadline = monotonic() + timeout_s
            while self.leader(topic, partition) != to:
                if monotonic() > deadline:
                    raise TimeoutError(f"broker {to} does not lead {topic}-{partition} after {timeout_s} s")
                sleep(POLL_S)
                cluster.request(election, ElectLeadersResponse)
