"""Move replicas between three brokers of kbroker, and between three nodes of Apache Kafka 4.3.1: first as fast as
possible, then with a throttle while clients produce and consume.

The same requests start the moves on both sides. Each round begins with new clusters.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from scripts.benchmark.cluster.admin import Admin
from scripts.benchmark.cluster.clusters import Cluster, KafkaCluster, KbrokerCluster
from scripts.benchmark.cluster.moves.measure import Figures, Settings, measure_round
from scripts.benchmark.cluster.moves.table import HEADING, lines_of, rows
from scripts.benchmark.page import write_table
from scripts.benchmark.peers import environment, kafka_classpath

MB, GB = 10**6, 10**9


def run_round(cluster: Cluster, settings: Settings) -> Figures:
    """Measure with a new cluster, which is removed afterwards."""
    cluster.prepare()
    try:
        cluster.start()
        admin = Admin(cluster)
        admin.wait_for_brokers()
        admin.close()
        figures = measure_round(cluster, settings)
    finally:
        cluster.stop()
        shutil.rmtree(cluster.directory, ignore_errors=True)
    print(f"{cluster.name}: {figures}", file=sys.stderr, flush=True)
    return figures


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="scripts/bench --moves", description=__doc__)
    add = result.add_argument
    add("--rounds", type=int, default=1, help="default 1")
    add("--gigabytes", type=float, default=2.0, help="the size of what is moved; default 2")
    add(
        "--throttle", type=float, default=20.0, metavar="MB/S", help="of each broker, sending and receiving; default 20"
    )
    add("--rate", type=int, default=2000, help="records/s of the clients; default 2000")
    add("--quiet", type=float, default=20.0, metavar="S", help="seconds in which the clients are alone; default 20")
    add("--no-kafka", action="store_true", help="measure kbroker only")
    add("--write", action="store_true", help="update the table in docs/benchmarks.md")
    add("--json", metavar="FILE", help="write the figures of all rounds here as well")
    return result


def main() -> int:
    args = parser().parse_args()
    settings = Settings(int(args.gigabytes * GB), int(args.throttle * MB), args.rate, args.quiet)
    machine = environment()
    measured = f"{time.strftime('%Y-%m-%d')}, {args.rounds} round{'s' * (args.rounds > 1)}"
    figures = compare(args, settings)
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": machine, "figures": figures}, indent=1))
    table = rows(f"{args.gigabytes:g} GB", f"{args.throttle:g} MB/s", args.rate)
    lines = lines_of(table, figures[KbrokerCluster.name], figures.get(KafkaCluster.name, []))
    print(f"{measured}, {machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}\n")
    print("\n".join((HEADING, *lines)))
    if args.write:
        intro = (
            f"Measured by `./scripts/bench --moves --write` on a machine of {machine['cores']} cores and "
            f"{machine['memory_gib']} GiB, Python\n{machine['python']}:"
        )
        write_table("moves", intro, HEADING, dict.fromkeys(lines, measured))
    return 0


def compare(args: argparse.Namespace, settings: Settings) -> dict[str, list[Figures]]:
    """Return the figures of all rounds, by the names of the servers."""
    kinds: list[type[Cluster]] = [KbrokerCluster]
    if not args.no_kafka:
        kafka_classpath()
        kinds.append(KafkaCluster)
    figures: dict[str, list[Figures]] = {kind.name: [] for kind in kinds}
    base = Path(tempfile.mkdtemp(prefix="kbroker-moves-"))
    try:
        for number in range(args.rounds):
            for kind in kinds if number % 2 else reversed(kinds):
                cluster = kind(base / f"{kind.__name__}-{number}")
                figures[kind.name].append(run_round(cluster, settings))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
