"""Many partitions: 10,000 on three brokers beside Apache Kafka's, and the metadata of 200,000 on 100 brokers.

The second part runs without a data plane in this process, with kbroker's own store. It measures what each change costs.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from kbroker.runtime.system import raise_descriptor_limit, system_environment
from scripts.benchmark.cluster.__main__ import number, start
from scripts.benchmark.cluster.clusters import Cluster, KafkaCluster, KbrokerCluster
from scripts.benchmark.page import write_table
from scripts.benchmark.peers import environment, kafka_classpath
from scripts.benchmark.scale.many_partitions import Figures, ManyPartitions
from scripts.benchmark.scale.metadata_costs import HEADING, THREADS, Cost, measure_metadata, rows_of_costs

PROCESSES_HEADING = "| three brokers | kbroker | Apache Kafka | ratio |\n|---|---|---|---|"
SMALL = 200


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="scripts/bench --scale", description=__doc__)
    add = result.add_argument
    add("--part", choices=("processes", "metadata"), help="only one of the two parts")
    add("--partitions", type=int, default=10_000, help="of the three brokers; default 10000")
    add("--metadata-partitions", type=int, default=200_000, help="of the metadata alone; default 200000")
    add("--brokers", type=int, default=100, help="of the metadata alone; default 100")
    add("--repeats", type=int, default=11, help="of each small change, of which the median counts; default 11")
    add("--rounds", type=int, default=1, help="of the three brokers; default 1")
    add("--no-kafka", action="store_true", help="measure kbroker only")
    add("--note", default="", help="what else ran on the machine, for the column `measured`")
    add("--write", action="store_true", help="update these rows in docs/benchmarks.md")
    add("--json", metavar="FILE", help="write the figures here as well")
    return result


def measure_processes(args: argparse.Namespace, base: Path) -> dict[str, list[Figures]]:
    """Return the figures of all rounds by server."""
    kinds: list[type[Cluster]] = [KbrokerCluster]
    if not args.no_kafka:
        kafka_classpath()
        kinds.append(KafkaCluster)
    figures: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
    for round_number in range(args.rounds):
        for kind in kinds:
            cluster = kind(base / f"{kind.__name__}-{round_number}")
            cluster.prepare()
            try:
                start(cluster)
                figures[kind.name].append(ManyPartitions(cluster, args.partitions).measure())
                print(f"{kind.name}: {figures[kind.name][-1]}", file=sys.stderr, flush=True)
            finally:
                cluster.stop()
                shutil.rmtree(cluster.directory, ignore_errors=True)
    return figures


def rows_of_processes(partitions: int, figures: dict[str, list[Figures]]) -> list[str]:
    """Return the rows of the table: medians, and the ratio of kbroker to Apache Kafka if both were measured.

    A figure that a run lacks, since one of its steps has failed, is a median of the other runs, or empty.
    """
    ours, theirs = figures[KbrokerCluster.name], figures.get(KafkaCluster.name, [])
    rows = []
    for unit in dict.fromkeys(unit for each in (*ours, *theirs) for unit in each):
        mine, other = _median(ours, unit), _median(theirs, unit)
        cells = [
            f"{partitions:,} partitions, {unit}",
            *("" if each is None else number(each) for each in (mine, other)),
        ]
        cells.append("" if mine is None or other is None else f"**{mine / max(other, 1e-9):.2f}**")
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _median(figures: list[Figures], unit: str) -> float | None:
    values = [each[unit] for each in figures if unit in each]
    return statistics.median(values) if values else None


async def measure_costs(args: argparse.Namespace, base: Path) -> dict[int, dict[str, Cost]]:
    costs = {}
    for partitions in (SMALL, args.metadata_partitions):
        world = system_environment(asyncio.get_running_loop())
        world.set_thread_count(THREADS)
        costs[partitions] = await measure_metadata(world, base, args.brokers, partitions, args.repeats)
    return costs


def main() -> int:
    args = parser().parse_args()
    machine = environment()
    measured = ", ".join(filter(None, (time.strftime("%Y-%m-%d"), args.note)))
    intro = (
        f"Measured by `./scripts/bench --scale --write` on a machine of {machine['cores']} cores and "
        f"{machine['memory_gib']} GiB, Python\n{machine['python']}:"
    )
    base = Path(tempfile.mkdtemp(prefix="kbroker-scale-"))
    raise_descriptor_limit()
    figures: dict[str, list[Figures]] = {}
    tables: list[tuple[str, str, list[str]]] = []
    try:
        if args.part != "metadata":
            figures = measure_processes(args, base)
            tables.append(("scale", PROCESSES_HEADING, rows_of_processes(args.partitions, figures)))
        if args.part != "processes":
            rows = rows_of_costs(asyncio.run(measure_costs(args, base)))
            tables.append(("scale-metadata", HEADING, rows))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    for section, heading, rows in tables:
        print("\n".join((heading, *rows, "")))
        if args.write:
            write_table(section, intro, heading, dict.fromkeys(rows, measured))
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": machine, "processes": figures, "tables": tables}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
