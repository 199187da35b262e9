"""A run: all kinds of work, one fault after the other, and in the end every check."""

import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.compat.cluster.growth.large_topic import LargeTopic
from tests.compat.cluster.growth.plan_commands import replicas
from tests.compat.cluster.work import create_topic
from tests.compat.crash.checks import read_topics
from tests.compat.soak.faults import Deck, Fault, Targets
from tests.compat.soak.network import Network
from tests.compat.soak.plans import Plans
from tests.compat.soak.progress import Kind, Stream
from tests.compat.soak.replicas import check_replicas
from tests.compat.soak.servers import HOSTS, HostedCluster
from tests.compat.soak.workload import Workload

REPLICAS = [[1, 2, 3], [2, 3, 4], [3, 4, 1]]
PARTITIONS = len(REPLICAS)
# Replicas and bytes of the topic that plans move: large enough that a move takes a while.
LARGE_REPLICAS, LARGE_PARTITION_BYTES = [*REPLICAS, [4, 1, 2]], 3_000_000


class Bounds(NamedTuple):
    """Seconds that work of each kind may stand still during a fault."""

    writes_s: float
    reads_s: float
    transactions_s: float

    def of(self, kind: Kind) -> float:
        return {Kind.WRITES: self.writes_s, Kind.READS: self.reads_s}.get(kind, self.transactions_s)


class Soak:
    """`violations`: faults during which work has stood still for too long. `report`: the summary of `finish`."""

    def __init__(self, directory: Path, seed: int, bounds: Bounds, with_network: bool, with_spark: bool) -> None:
        self.violations: list[str] = []
        self.report: list[str] = []
        self._bounds = bounds
        self._seed = seed
        self._cluster = HostedCluster(directory, Network(HOSTS) if with_network else None)
        self._directory = directory
        self._with_spark = with_spark
        # What ends the processes that run.
        self._processes = ExitStack()
        self._processes.callback(self._cluster.end)
        self._counts: Counter[str] = Counter()
        self._longest_s: dict[tuple[str, Kind], float] = {}

    def start(self) -> None:
        cluster = self._cluster
        cluster.servers.start()
        cluster.servers.wait_until_healthy()
        cluster.start()
        self._large = LargeTopic(cluster, LARGE_REPLICAS, LARGE_PARTITION_BYTES)
        topic = create_topic(cluster, REPLICAS)
        self._work = Workload(cluster.bootstrap, topic, PARTITIONS, self._directory, self._with_spark)
        self._processes.callback(self._work.end)
        self._work.start()
        cluster.restore()
        group = self._work.readers.groups[0].name
        transactional_id = self._work.transformers.flows[0].programs[0].client_id
        self._plans = Plans(cluster, self._seed)
        targets = Targets(topic, PARTITIONS, group, transactional_id)
        self._deck = Deck(cluster, targets, self._seed, self._plans.begin)

    # Faults.

    def run_fault(self, number: int) -> None:
        """Inflict a fault, and check that work goes on during it and after it."""
        begin_s = time.monotonic()
        fault = self._deck.next()
        waiting = self._waiting_streams(fault)
        going_on = [stream for stream in self._work.progress.streams if stream not in waiting]
        print(f"{number:4d} {fault.kind}: {fault.detail}, {fault.hold_s:.1f} s", end="", flush=True)
        self._work.progress.begin(self._work.progress.streams)
        fault.inflict()
        self._hold(fault.hold_s)
        if not fault.is_short:
            self._work.wait_for_progress("during the fault", going_on)
        healed_s = time.monotonic()
        # Those that could not go on have until now done nothing wrong.
        self._work.progress.begin(waiting)
        self._cluster.restore()
        healthy_s = time.monotonic()
        plan = f"; {self._plans.finish()}" if fault.is_during_plan else ""
        self._work.wait_for_progress("after the fault")
        gaps = {kind: self._work.progress.longest_s(kind) for kind in Kind}
        print(
            "; longest gaps: " + ", ".join(f"{kind.value} {gap:.1f} s" for kind, gap in gaps.items()),
            f"; in sync after {healthy_s - healed_s:.1f} s{plan}; {time.monotonic() - begin_s:.0f} s",
            sep="",
            flush=True,
        )
        self._judge(number, fault, gaps)
        self._work.check()

    def _waiting_streams(self, fault: Fault) -> list[Stream]:
        """Return the streams that may have to wait for the end of a fault."""
        if fault.delays_transactions:
            return [stream for stream in self._work.progress.streams if stream.kind == Kind.TRANSACTIONS]
        if fault.is_silent:
            flows = [flow.group for flow in self._work.transformers.flows if flow.client == "kafka_python"]
            return [stream for stream in self._work.progress.streams if stream.name in flows]
        if not fault.unreachable:
            return []
        led = {
            partition
            for partition in range(PARTITIONS)
            if self._cluster.leader(self._work.topic, partition) == fault.unreachable
        }
        # Groups and transactions have coordinators, and a kafka-python consumer sends all its requests in one thread.
        return [
            stream for stream in self._work.progress.streams if stream.kind != Kind.WRITES or stream.partition in led
        ]

    def _hold(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._work.transformers.check()
            time.sleep(min(0.2, max(0.0, end_s - time.monotonic())))

    def _judge(self, number: int, fault: Fault, gaps: dict[Kind, float]) -> None:
        self._counts[fault.kind] += 1
        for kind, gap_s in gaps.items():
            self._longest_s[fault.kind, kind] = max(gap_s, self._longest_s.get((fault.kind, kind), 0.0))
            if gap_s > self._bounds.of(kind):
                text = f"fault {number} ({fault.kind}: {fault.detail}): {kind.value} stood still for {gap_s:.1f} s"
                self.violations.append(f"{text} ({self._work.progress.slowest(kind)})")
                print(f"     TOO LONG: {self.violations[-1]}", flush=True)

    # The end.

    def finish(self) -> None:
        """Stop the work, and check everything that it has written and read."""
        lines = self._work.finish(self._cluster.restore)
        large = self._large
        large.check(read_topics(self._cluster.bootstrap, {large.name: large.partitions})[large.name])
        kept = {large.name, *self._work.topics}
        placed = {key: brokers for key, brokers in replicas(self._cluster).items() if key[0] in kept}
        self._cluster.stop_all()
        batches = check_replicas(
            {node_id: broker.data_dir for node_id, broker in self._cluster.brokers.items()}, placed
        )
        self.report = [
            f"{'faults':50} {'count':>5}  longest gap in s: {'  '.join(kind.value for kind in Kind)}",
            *(self._report_line(kind) for kind in sorted(self._counts)),
            *lines,
            f"{batches} bytes of logs are the same on all replicas",
        ]

    def _report_line(self, fault_kind: str) -> str:
        gaps = "  ".join(f"{self._longest_s[fault_kind, kind]:{len(kind.value)}.1f}" for kind in Kind)
        return f"{fault_kind:50} {self._counts[fault_kind]:5}                    {gaps}"

    def describe_failure(self) -> None:
        print(self._cluster.description(), file=sys.stderr)

    def end(self) -> None:
        """End all processes."""
        self._processes.close()
