"""Three brokers become five and three again, while clients of all kinds work and controllers are killed.

    python -m tests.compat.cluster.growth.growth --seeds 1..10

Two brokers join, `kbroker brokers balance` gives them their share, `kbroker brokers drain` empties two of the five, and
these are stopped and unregistered. Each plan is made by a dry run, and executed with a throttle, so that the controller
is killed (kill -9) while partitions move. The seed chooses the moment, the brokers that go, and when a killed
controller returns.

Each plan must end with the replicas that it has shown, no partition may have fewer replicas in sync than before
(in_sync_watch.py), and nothing may be lost, doubled or out of order (tests/compat/soak/workload.py).
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from protocol.messages.k64_unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from protocol.messages.k10000_reassignment_plans import DescribedPlan
from tests.compat.broker_connection import BrokerConnection
from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.cluster.growth.in_sync_watch import InSyncWatch
from tests.compat.cluster.growth.large_topic import LargeTopic
from tests.compat.cluster.growth.plan_commands import (
    check_end,
    json_of,
    latest_plan,
    process,
    replicas,
    run,
    targets,
    wait_for_end,
)
from tests.compat.cluster.views import FAILURES
from tests.compat.cluster.work import create_topic
from tests.compat.crash.checks import read_topics
from tests.compat.soak.progress import Kind
from tests.compat.soak.replicas import check_replicas
from tests.compat.soak.workload import Workload
from tests.compat.support import eventually

FIRST, JOINING = (1, 2, 3), (4, 5)
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
# Of the topic whose copies take the time: with this rate of copies, about ten seconds for each plan.
PARTITION_BYTES, RATE = 4_000_000, "1500k"
# Few at a time: the controller dies when some partitions have moved, some are moving and some are waiting.
CONCURRENT = "4"
SETTINGS = {
    # A busy machine must not look like a broker that fails.
    "zookeeper_session_timeout_ms": "6000",
    "replica_lag_time_max_ms": "15000",
    # Leaderships return to the first replicas while partitions move.
    "leader_imbalance_check_interval_seconds": "5",
}


class Growth:
    """One run. `report`: what it has done."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.report: list[str] = []
        self._directory = directory
        self._random = random.Random(seed)
        self.cluster = Cluster(directory, Ensemble(directory, 1), len(FIRST), racks=len(FIRST + JOINING), **SETTINGS)
        self._watch = InSyncWatch(self.cluster)
        self._work: Workload | None = None

    def run(self) -> None:
        """Raises AssertionError if anything is wrong."""
        cluster = self.cluster
        cluster.ensemble.start()
        cluster.start()
        large = LargeTopic(cluster, REPLICAS * 2, PARTITION_BYTES)
        topic = create_topic(cluster, REPLICAS)
        # The clients know the first brokers only, of which one or two may go.
        work = self._work = Workload(cluster.bootstrap, topic, len(REPLICAS), self._directory)
        work.start()
        for node_id in JOINING:
            cluster.add(node_id)
        cluster.start()
        cluster.wait_until_healthy()
        gone = sorted(self._random.sample(FIRST + JOINING, 2))
        with self._watch:
            self._run_plan(work, "balance")
            self._run_plan(work, "drain", *map(str, gone))
            self._remove(gone)
            work.wait_for_progress("without the drained brokers")
            work.check()
            self.report += [f"{self._watch.samples} looks at the in-sync replicas", *self._gaps(work)]
            self.report += work.finish(cluster.wait_until_healthy)
        self._check_watch()
        logs = {node_id: broker.all_errors for node_id, broker in cluster.brokers.items()}
        logged = list(self._watch.logged_violations(logs))
        assert logged == [], "\n".join(logged[:20])
        self._check_data(work, large)

    def end(self) -> None:
        if self._work is not None:
            self._work.end()
        self.cluster.end()

    # Plans.

    def _run_plan(self, work: Workload, *command: str) -> None:
        """Run a plan, during which the controller is killed. It ends with the replicas that it has shown."""
        cluster, name = self.cluster, " ".join(command)
        begin_s = time.monotonic()
        before = replicas(cluster)
        shown = json_of(cluster, "brokers", *command, "--dry-run")
        file = self._directory / f"{command[0]}.json"
        file.write_text(json.dumps(shown))
        self._watch.begin(before, targets(shown))
        assert targets(shown, "original").items() <= before.items()
        run(
            cluster,
            "brokers",
            "execute",
            str(file),
            "--throttle",
            RATE,
            "--concurrent",
            CONCURRENT,
            "--yes",
            "--detach",
        )
        watching = process(cluster, "brokers", "plan", "--watch", "--json")
        done, moves = self._wait_for_moment(len(shown["moves"]))
        killed = self._kill_controller()
        killed_s = time.monotonic()
        is_back_early = self._random.random() < 0.5
        if not is_back_early:
            eventually(lambda: self._has_ended_or_waits_for(killed), f"{name} goes on without broker {killed}")
            work.wait_for_progress(f"while broker {killed} is down")
        else:
            self._pause(self._random.uniform(0.0, 8.0))
        away_s = time.monotonic() - killed_s
        cluster.start(killed)
        ended = wait_for_end(watching)
        check_end(cluster, shown, ended, before)
        self._watch.in_sync_again()
        work.wait_for_progress(f"after {name}")
        work.check()
        self._check_watch()
        took_s = (ended["ended_ms"] - ended["created_ms"]) / 1000
        self.report.append(
            f"{name}: {moves} moves, controller {killed} killed after {done}, back {away_s:.1f} s later; ended as "
            f"shown after {took_s:.1f} s, {time.monotonic() - begin_s:.0f} s with all checks"
        )

    def _wait_for_moment(self, moves: int) -> tuple[int, int]:
        """Wait until the plan is at a random point, and return how many moves are done, and how many there are."""
        enough = self._random.randrange(max(moves * 2 // 3, 1))
        found: list[DescribedPlan] = []

        def has_come() -> bool:
            plan = latest_plan(self.cluster)
            found[:] = [plan] if plan else []
            return plan is not None and plan.moves_done >= enough and plan.moves_running > 0

        eventually(has_come, f"{enough} of {moves} moves are done, others are running")
        self._pause(self._random.uniform(0.0, 0.3))
        return found[0].moves_done, moves

    def _kill_controller(self) -> int:
        controller = self.cluster.controller()
        self._watch.before_kill(controller)
        self.cluster.kill(controller)
        return controller

    def _has_ended_or_waits_for(self, broker: int) -> bool:
        """Return whether the plan does all that it can do without a broker, after another controller was elected."""
        plan = latest_plan(self.cluster)
        if plan is None or self.cluster.controller() == broker:
            return False
        waiting = [move for move in plan.moves if move.state != "done"]
        return all(broker in set(move.target_replicas) - set(move.original_replicas) for move in waiting)

    def _check_watch(self) -> None:
        assert self._watch.violations == [], "\n".join(self._watch.violations[:20])

    def _pause(self, seconds: float) -> None:
        """Let a random time pass, which a seed has chosen."""
        threading.Event().wait(seconds)

    # The drained brokers go.

    def _remove(self, gone: list[int]) -> None:
        """Stop the drained brokers and unregister them. Nothing may depend on them."""
        cluster = self.cluster
        for node_id in gone:
            eventually(lambda node_id=node_id: self._logs_of(node_id) == [], f"no logs on the drained broker {node_id}")
            self._watch.before_stop(node_id)
            cluster.stop(node_id)
        for node_id in gone:
            eventually(lambda node_id=node_id: self._unregister(node_id), f"broker {node_id} is unregistered")
            cluster.remove(node_id)
        self._watch.begin(replicas(cluster), {})
        listed = json.loads(run(cluster, "brokers", "list", "--json")[0])
        assert [row["broker"] for row in listed] == sorted(cluster.brokers)
        self.report.append(f"brokers {gone} are stopped and unregistered")

    def _logs_of(self, node_id: int) -> list[str]:
        """Return the directories of logs, without those that were put aside or are being deleted."""
        logs = self.cluster.brokers[node_id].data_dir.rglob("*.log")
        return [path.parent.name for path in logs if not path.parent.name.endswith(("-delete", "-stray"))]

    def _unregister(self, node_id: int) -> bool:
        (asked, *_) = self.cluster.running
        try:
            with BrokerConnection(self.cluster.brokers[asked].bootstrap) as connection:
                request = UnregisterBrokerRequest(broker_id=node_id)
                return connection.request(request, 0, UnregisterBrokerResponse).error_code == 0
        except FAILURES:
            return False

    # Data.

    def _gaps(self, work: Workload) -> list[str]:
        gaps = ", ".join(f"{kind.value} {work.progress.longest_s(kind):.1f} s" for kind in Kind)
        return [f"longest gaps: {gaps}"]

    def _check_data(self, work: Workload, large: LargeTopic) -> None:
        """Read everything again with two clients, then compare the logs of the brokers that are left."""
        cluster, topics = self.cluster, {large.name: large.partitions, work.topic: work.partitions}
        by_confluent = read_topics(cluster.bootstrap, topics)
        large.check(by_confluent[large.name])
        for topic, parts in by_confluent.items():
            for partition, part in enumerate(parts):
                assert read_with_kafka_python(cluster.bootstrap, TopicPartition(topic, partition), len(part)) == part
        kept = {large.name, *work.topics}
        placed = {key: brokers for key, brokers in replicas(cluster).items() if key[0] in kept}
        for node_id in cluster.running:
            cluster.stop(node_id)
        data_dirs = {node_id: broker.data_dir for node_id, broker in cluster.brokers.items()}
        count = check_replicas(data_dirs, placed)
        self.report.append(f"two clients read the same; {count} bytes of logs are the same on all brokers")


def read_with_kafka_python(bootstrap: str, partition: TopicPartition, count: int) -> list[tuple[int, bytes, bytes]]:
    """Return offset, key and value of the records of a partition from its start. Fails if there are not `count`."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, max_partition_fetch_bytes=1 << 22
    )
    records: list[tuple[int, bytes, bytes]] = []

    def is_complete() -> bool:
        for record in consumer.poll(timeout_ms=200, max_records=5000).get(partition, ()):
            records.append((record.offset, record.key, record.value))
        return len(records) >= count

    try:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        assert consumer.end_offsets([partition])[partition] == count
        eventually(is_complete, f"{count} records of {partition}", interval=0, progress=lambda: len(records))
    finally:
        consumer.close()
    return records


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.cluster.growth.growth", description=__doc__)
    parser.add_argument("--seeds", default="1..10", metavar="FIRST..LAST")
    first, _, last = parser.parse_args().seeds.partition("..")
    failed = []
    for seed in range(int(first), int(last or first) + 1):
        directory = Path(tempfile.mkdtemp(prefix=f"kbroker-growth-{seed}-"))
        growth, begin_s = Growth(directory, seed), time.monotonic()
        try:
            growth.run()
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed} FAILED: {type(error).__name__}: {error}; logs: {directory}", flush=True)
            print(growth.cluster.description(), file=sys.stderr)
        finally:
            growth.end()
        print("\n".join(growth.report), f"seed {seed}: {time.monotonic() - begin_s:.0f} s", sep="\n", flush=True)
    print(f"failed seeds: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
