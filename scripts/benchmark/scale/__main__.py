"""Many partitions: 10,000 on three brokers beside Apache Kafka's, and the metadata of 200,000 on 100 brokers.

The second part runs without a data plane in this process, with kbroker's own store. It measures what each change costs.
In the first part clients see a partition through Metadata and ListOffsets; files of the brokers are not read.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kbroker.runtime.system import raise_descriptor_limit, system_environment
from scripts.benchmark.cluster.admin import NO_LEADER, Admin, balanced, start, wait_until
from scripts.benchmark.cluster.cases import other_than
from scripts.benchmark.cluster.clusters import BROKERS, Cluster, KafkaCluster, KbrokerCluster, measure_clusters
from scripts.benchmark.frame import (
    add_options,
    comparison,
    median_of,
    parser,
    publish,
    scratch_directory,
    today,
    write_json,
)
from scripts.benchmark.peers import resident_kib
from scripts.benchmark.scale.metadata_costs import HEADING, THREADS, Cost, measure_metadata, rows_of_costs

PROCESSES_HEADING = "| three brokers | kbroker | Apache Kafka | ratio |\n|---|---|---|---|"
SMALL = 200
TOPIC_PARTITIONS = 100
# How long the processor time of an idle cluster is measured, and the pause before.
IDLE_S = 30.0
SETTLE_S = 20.0
POLL_S = 0.2

Figures = dict[str, float]


class ManyPartitions:
    """Measures one cluster, which must be started; the steps build on each other, in the order of `measure`."""

    def __init__(self, cluster: Cluster, partitions: int, idle_s: float = IDLE_S, settle_s: float = SETTLE_S) -> None:
        self._cluster = cluster
        self._idle_s = idle_s
        self._settle_s = settle_s
        self._assignments = balanced(TOPIC_PARTITIONS)
        self._topics: list[str] = []
        self._count = -(-partitions // TOPIC_PARTITIONS)
        self._restarted: subprocess.Popen[bytes] | None = None

    def measure(self) -> Figures:
        """Return the figures of all steps, or of those before one that fails: the failure is printed."""
        admin, figures = Admin(self._cluster), Figures()
        try:
            admin.wait_for_brokers()
            for step in (
                lambda: {"idle processor ms/s, no partitions": self._idle_ms()},
                lambda: self._create(admin),
                lambda: {"resident MiB of a broker": self._resident_mib(), "idle processor ms/s": self._idle_ms()},
                lambda: self._fail_over(admin),
                lambda: self._restart(admin),
            ):
                figures |= step()
        except (SystemExit, OSError) as failure:
            print(f"{self._cluster.name}: nothing more is measured: {failure}", file=sys.stderr, flush=True)
        finally:
            admin.close()
            if self._restarted is not None:
                self._restarted.kill()
                self._restarted.wait()
        return figures

    def _idle_ms(self) -> float:
        """Return the processor time of the whole cluster while no client is connected, in milliseconds per second."""
        time.sleep(self._settle_s)
        before, begin = self._cluster.processor_time().total, time.monotonic()
        time.sleep(self._idle_s)
        return 1000 * (self._cluster.processor_time().total - before) / (time.monotonic() - begin)

    def _resident_mib(self) -> float:
        """Return the memory of the largest broker."""
        pids = [self._cluster.broker_pid(node_id) for node_id in range(1, BROKERS + 1)]
        return max(map(resident_kib, pids)) / 1024

    def _create(self, admin: Admin) -> Figures:
        """Create topics of 100 partitions, each with a request; return when all brokers know all leaders."""
        begin = time.monotonic()
        self._topics = [admin.create(self._assignments) for _ in range(self._count)]
        created_s = time.monotonic() - begin
        for node_id in range(1, BROKERS + 1):
            for topic in self._topics:
                wait_until(lambda node_id=node_id, topic=topic: has_leaders(admin, node_id, topic),  # type: ignore[misc]
                           f"broker {node_id} names leaders for {topic}")  # fmt: skip
        named_s = time.monotonic() - begin
        for topic in self._topics:
            wait_until(lambda topic=topic: leaders_respond(admin, topic), f"the leaders of {topic} respond")  # type: ignore[misc]
        return {
            "s to create, until the last response": created_s,
            "s to create, until all brokers name all leaders": named_s,
            "s to create, until all leaders respond": time.monotonic() - begin,
        }

    def _fail_over(self, admin: Admin) -> Figures:
        """Kill a broker that is not the controller; return when another one names leaders for all partitions."""
        self._victim = other_than(admin.controller())
        asked = next(node_id for node_id in range(1, BROKERS + 1) if node_id != self._victim)
        os.kill(self._cluster.broker_pid(self._victim), signal.SIGKILL)
        begin = time.monotonic()
        wait_until(lambda: self._has_moved(admin, asked, self._topics[0]), "the first partition has another leader")
        first_s = time.monotonic() - begin
        for topic in self._topics:
            wait_until(lambda topic=topic: self._has_moved(admin, asked, topic),  # type: ignore[misc]
                       f"{topic} has other leaders")  # fmt: skip
        return {"s of failover, first topic": first_s, "s of failover, last topic": time.monotonic() - begin}

    def _has_moved(self, admin: Admin, asked: int, topic: str) -> bool:
        return not {self._victim, NO_LEADER} & set(admin.leaders(asked, topic).values())

    def _restart(self, admin: Admin) -> Figures:
        """Start the killed broker again; return when it listens, and when all replicas are in sync."""
        begin = time.monotonic()
        self._restarted = self._cluster.restart(self._victim)
        asked = next(node_id for node_id in range(1, BROKERS + 1) if node_id != self._victim)
        listening_s = time.monotonic() - begin
        for topic in self._topics:
            wait_until(lambda topic=topic: admin.are_in_sync(asked, topic),  # type: ignore[misc]
                       f"all replicas of {topic} are in sync", POLL_S)  # fmt: skip
        return {"s of restart, until it listens": listening_s, "s of restart, until in sync": time.monotonic() - begin}


def leaders_respond(admin: Admin, topic: str) -> bool:
    leaders = admin.leaders(1, topic)
    return NO_LEADER not in leaders.values() and all(
        admin.is_leading(node_id, topic, [index for index, leader in leaders.items() if leader == node_id])
        for node_id in set(leaders.values())
    )


def has_leaders(admin: Admin, node_id: int, topic: str) -> bool:
    leaders = admin.leaders(node_id, topic)
    return len(leaders) == TOPIC_PARTITIONS and NO_LEADER not in leaders.values()


def measure(cluster: Cluster, partitions: int) -> Figures:
    start(cluster)
    return ManyPartitions(cluster, partitions).measure()


def rows_of_processes(partitions: int, figures: dict[str, list[Figures]]) -> list[str]:
    """Return the rows of the table: medians, and the ratio of kbroker to Apache Kafka if both were measured.

    A figure that a run lacks, since one of its steps has failed, is a median of the other runs, or empty.
    """
    sides = figures[KbrokerCluster.name], figures.get(KafkaCluster.name, [])
    units = dict.fromkeys(unit for side in sides for each in side for unit in each)
    return [
        comparison(f"{partitions:,} partitions, {unit}", median_of(sides[0], unit), median_of(sides[1], unit))
        for unit in units
    ]


async def measure_costs(args: argparse.Namespace, base: Path) -> dict[int, dict[str, Cost]]:
    costs = {}
    for partitions in (SMALL, args.metadata_partitions):
        world = system_environment(asyncio.get_running_loop())
        world.set_thread_count(THREADS)
        costs[partitions] = await measure_metadata(world, base, args.brokers, partitions, args.repeats)
    return costs


def options() -> argparse.ArgumentParser:
    result = parser("--scale", __doc__, 1)
    add_options(result, only=False, kafka=True)
    add = result.add_argument
    add("--part", choices=("processes", "metadata"), help="only one of the two parts")
    add("--partitions", type=int, default=10_000, help="of the three brokers; default 10000")
    add("--metadata-partitions", type=int, default=200_000, help="of the metadata alone; default 200000")
    add("--brokers", type=int, default=100, help="of the metadata alone; default 100")
    add("--repeats", type=int, default=11, help="of each small change, of which the median counts; default 11")
    add("--note", default="", help="what else ran on the machine, for the column `measured`")
    return result


def main() -> int:
    args = options().parse_args()
    measured = ", ".join(filter(None, (today(), args.note)))
    raise_descriptor_limit()
    figures: dict[str, list[Figures]] = {}
    tables: dict[str, list[str]] = {}
    with scratch_directory() as base:
        if args.part != "metadata":
            figures = measure_clusters(
                base, args.rounds, args.no_kafka, lambda cluster: measure(cluster, args.partitions)
            )
            tables["scale"] = rows_of_processes(args.partitions, figures)
            publish(args, "scale", "--scale", PROCESSES_HEADING, tables["scale"], measured)
        if args.part != "processes":
            tables["scale-metadata"] = rows_of_costs(asyncio.run(measure_costs(args, base)))
            publish(args, "scale-metadata", "--scale", HEADING, tables["scale-metadata"], measured)
    write_json(args, processes=figures, tables=tables)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
