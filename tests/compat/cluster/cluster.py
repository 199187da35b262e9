"""Three broker processes that share a ZooKeeper ensemble.

With `KBROKER_COMPAT_COMMAND` (see BrokerProcess) the brokers are those of another program, which finds their ids and
addresses in `KBROKER_COMPAT_NODES`, as `id@host:port` with commas between them.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.compat.cluster.ensemble import Ensemble, NoEnsemble
from tests.compat.cluster.views import ClusterView, cluster_view, controller_of, coordinator_of
from tests.compat.support import EXTERNAL_BOOTSTRAP, BrokerProcess, eventually

T = TypeVar("T")

IS_KBROKER = not os.environ.get("KBROKER_COMPAT_COMMAND")
# Seconds: long enough for a slow machine with other work, short enough for tests that wait until a session expires.
SESSION_S = 3.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(round(SESSION_S * 1000)),
    # A start waits for a busy machine; by default it ends after the time of a session.
    "zookeeper.connection.timeout.ms": "60000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "6000",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class Cluster:
    """`brokers` by id, all of them, also those that are not running. `paused`: those that a test has paused."""

    def __init__(self, directory: Path, ensemble: Ensemble, count: int = 3, racks: int = 0, **settings: str) -> None:
        """`racks`: the number of racks, among which the brokers take turns; 0: each broker has its own.

        `settings`: configs of all brokers, with underscores for dots.
        """
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}
        self._directory = directory
        self.ensemble = ensemble
        self._racks = racks or count
        self.connect = f"{ensemble.address}/cluster"
        self.brokers: dict[int, BrokerProcess] = {}
        self.paused: set[int] = set()
        self.stopped: set[int] = set()
        for node_id in range(1, count + 1):
            self.add(node_id)
        os.environ["KBROKER_COMPAT_NODES"] = ",".join(
            f"{node_id}@{broker.bootstrap}" for node_id, broker in self.brokers.items()
        )

    def new_broker(
        self, directory: Path, node_id: int, settings: Mapping[str, str] | None = None, connect: str = ""
    ) -> BrokerProcess:
        """Return a broker process that is not started and not counted among the brokers."""
        directory.mkdir(parents=True, exist_ok=True)
        own = {
            "node.id": str(node_id),
            "broker.rack": f"rack-{self.rack(node_id)}",
            "zookeeper.connect": connect or self.connect,
        }
        return BrokerProcess(directory, {**SETTINGS, **self._settings, **own, **(settings or {})})

    def add(self, node_id: int) -> None:
        """Count a new broker among the brokers; `start` starts it."""
        self.stopped.add(node_id)
        # A new dictionary, since threads of tests may iterate over the old one.
        broker = self.new_broker(self._directory / f"broker-{node_id}", node_id)
        self.brokers = {**self.brokers, node_id: broker}

    def remove(self, node_id: int) -> BrokerProcess:
        """Return a broker that has been stopped for good, and count it no longer."""
        removed = self.brokers[node_id]
        self.brokers = {other: self.brokers[other] for other in self.others(node_id)}
        self.stopped.remove(node_id)
        return removed

    def rack(self, node_id: int) -> int:
        """Return the number of a broker's rack, from 1."""
        return (node_id - 1) % self._racks + 1

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def running(self) -> list[int]:
        """The brokers that can respond."""
        return [node_id for node_id in self.brokers if node_id not in self.stopped | self.paused]

    # Failures.

    def start(self, *node_ids: int) -> None:
        """Start brokers that are not running, all if none is named, and wait until they are ready."""
        chosen = [node_id for node_id in node_ids or self.brokers if node_id in self.stopped]
        self.launch(*chosen)
        for node_id in chosen:
            eventually(self.brokers[node_id].ready, f"broker {node_id} is ready", interval=0.02)
            self.stopped.discard(node_id)

    def launch(self, *node_ids: int) -> None:
        """Start brokers without waiting for them; `start` waits."""
        for node_id in node_ids:
            if not self.brokers[node_id].is_launched:
                self.brokers[node_id].launch()

    def kill(self, node_id: int) -> None:
        """Kill a broker (kill -9)."""
        self.brokers[node_id].kill()
        self.stopped.add(node_id)
        self.paused.discard(node_id)

    def lose_disk(self, node_id: int) -> None:
        """Remove the data of a broker that is not running: it starts with an empty disk."""
        assert node_id in self.stopped
        shutil.rmtree(self.brokers[node_id].data_dir)

    def stop(self, node_id: int) -> None:
        """Stop a broker with SIGTERM. Fails unless the shutdown is clean."""
        self.stopped.add(node_id)
        self.brokers[node_id].stop()

    def pause(self, node_id: int) -> None:
        self.paused.add(node_id)
        self.brokers[node_id].freeze()

    def resume(self, node_id: int) -> None:
        self.brokers[node_id].resume()
        self.paused.discard(node_id)

    def restore(self) -> None:
        """Run everything again, and wait until every replica is in sync."""
        for node_id in list(self.paused):
            self.resume(node_id)
        self.ensemble.start()
        self.start()
        self.wait_until_healthy()

    def end(self) -> None:
        for broker in self.brokers.values():
            broker.end()
        self.ensemble.kill()

    # What the brokers say.

    def views(self) -> dict[int, ClusterView | None]:
        """Return the metadata of each running broker."""
        return {node_id: cluster_view(self.brokers[node_id].bootstrap) for node_id in self.running}

    def wait_until(self, condition: Callable[[ClusterView], object], description: str) -> None:
        """Wait until every running broker's metadata meets the condition."""

        def is_met() -> bool:
            return all(view is not None and condition(view) for view in self.views().values())

        try:
            eventually(is_met, description, interval=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.description()}") from error

    def wait_until_healthy(self) -> None:
        """Wait until every broker knows all others, and every partition has a leader and all replicas in sync."""
        everyone = frozenset(self.brokers)
        self.wait_until(
            lambda view: view.brokers == everyone and view.is_fully_replicated, "all brokers, with all replicas in sync"
        )

    def controller(self) -> int:
        """Return the id of the controller, which one of the running brokers is."""
        return self._asked(lambda bootstrap: self._if_running(controller_of(bootstrap)), "a controller")

    def coordinator(self, key: str, key_type: int) -> int:
        """Return the id of the running broker that coordinates a group, transactional id or share partition."""
        return self._asked(
            lambda bootstrap: self._if_running(coordinator_of(bootstrap, key, key_type)), f"the coordinator of {key}"
        )

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader of a partition, one of the running brokers."""

        def ask(bootstrap: str) -> int | None:
            view = cluster_view(bootstrap)
            part = view.partitions.get((topic, partition)) if view else None
            return self._if_running(part.leader) if part else None

        return self._asked(ask, f"the leader of {topic}-{partition}")

    def others(self, *node_ids: int) -> list[int]:
        return [node_id for node_id in self.brokers if node_id not in node_ids]

    def description(self) -> str:
        """Return what each running broker says, and the end of each broker's log, for a test that has failed."""
        lines = [f"broker {node_id}: {view}" for node_id, view in self.views().items()]
        for node_id, broker in self.brokers.items():
            lines.append(f"log of broker {node_id}:")
            lines += broker.errors.splitlines()[-15:] if broker.starts else []
        return "\n".join(lines)

    def _if_running(self, node_id: int | None) -> int | None:
        return node_id if node_id in self.running else None

    def _asked(self, ask: Callable[[str], int | None], description: str) -> int:
        """Ask the running brokers until one of them has an answer."""

        def answer() -> int | None:
            found = (ask(self.brokers[node_id].bootstrap) for node_id in self.running)
            return first(node_id for node_id in found if node_id is not None)

        result = eventually(answer, description, interval=0.1)
        assert result is not None
        return result


@contextmanager
def running_cluster(
    directory: Path, count: int = 3, racks: int = 0, *, servers: int = 3, **settings: str
) -> Iterator[Cluster]:
    """A cluster for some tests, which runs until they end. `servers`: of ZooKeeper; test_zookeeper.py needs several."""
    if EXTERNAL_BOOTSTRAP:
        pytest.skip("not run: needs a cluster of its own, and the suite was pointed at a broker")
    ensemble = Ensemble(directory, servers) if IS_KBROKER else NoEnsemble()
    cluster = Cluster(directory, ensemble, count, racks, **settings)
    try:
        ensemble.start()
        cluster.start()
        yield cluster
    finally:
        cluster.end()


def first(items: Iterable[T]) -> T | None:
    return next(iter(items), None)
