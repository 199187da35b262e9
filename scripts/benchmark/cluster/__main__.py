"""Three brokers of kbroker and three nodes of Apache Kafka 4.3.1, side by side, with acks=all: medians of some rounds.

With --scaling instead, kbroker alone: two brokers on two cores against one.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmark.cluster.admin import Admin
from scripts.benchmark.cluster.cases import Case, all_cases
from scripts.benchmark.cluster.clusters import Cluster, KafkaCluster, KbrokerCluster
from scripts.benchmark.cluster.scaling import SCALING_HEADING, measure_scaling
from scripts.benchmark.page import write_table
from scripts.benchmark.peers import environment, kafka_classpath

# The figures of one server: by case and unit, those of each round.
Figures = dict[str, dict[str, list[float]]]
HEADING = "| case | kbroker | Apache Kafka | ratio | bound |\n|---|---|---|---|---|"


def run_round(cluster: Cluster, cases: Sequence[Case], figures: Figures) -> None:
    """Measure all cases with a new cluster, which is removed afterwards."""
    cluster.prepare()
    try:
        start(cluster)
        for number, case in enumerate(cases, 1):
            measured = case.measure(cluster)
            print(f"{cluster.name}, {case.name}: {measured}", file=sys.stderr, flush=True)
            for unit, value in measured.items():
                figures[case.name].setdefault(unit, []).append(value)
            if case.ends_broker and number < len(cases):
                cluster.stop()
                start(cluster)
    finally:
        cluster.stop()
        shutil.rmtree(cluster.directory, ignore_errors=True)


def start(cluster: Cluster) -> None:
    cluster.start()
    admin = Admin(cluster)
    admin.wait_for_brokers()
    admin.close()


def rows_of(case: Case, ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> list[str]:
    """Return the rows of a case. `theirs` is empty if Kafka was not measured."""
    rows = []
    for unit, values in ours.items():
        mine = statistics.median(values)
        cells = [f"{case.name}, {unit}", number(mine)]
        if not theirs:
            cells += [""] * 3
        else:
            other = statistics.median(theirs[unit])
            sign, bound = case.bounds.get(unit, ("", 0.0))
            cells += [number(other), f"**{mine / other:.2f}**", f"{sign} {bound:.2f}" if sign else ""]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="scripts/bench --cluster", description=__doc__)
    add = result.add_argument
    add("--rounds", type=int, default=3, help="default 3")
    add("--only", metavar="TEXT", default="", help="only the cases whose name contains this")
    add("--scale", type=float, default=1.0, help="multiplies the numbers of records")
    add("--no-kafka", action="store_true", help="measure kbroker only")
    add("--scaling", action="store_true", help="instead, two brokers on two cores against one")
    add("--seconds", type=float, default=4, help="with --scaling: the duration of each measurement; default 4")
    add("--write", action="store_true", help="update the rows of these cases in docs/benchmarks.md")
    add("--json", metavar="FILE", help="write the figures of all rounds here as well")
    return result


def main() -> int:
    args = parser().parse_args()
    machine = environment()
    measured = f"{time.strftime('%Y-%m-%d')}, {args.rounds} rounds"
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        if args.scaling:
            section, titles = "scaling", SCALING_HEADING
            rows = measure_scaling(base, args.rounds, args.seconds, args.only)
        else:
            section, titles = "cluster", HEADING
            rows = compare(args, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"{measured}, {machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}\n")
    print("\n".join((titles, *rows)))
    if args.write:
        option = "--scaling --write" if args.scaling else "--write"
        intro = (
            f"Measured by `./scripts/bench --cluster {option}` on a machine of {machine['cores']} cores and "
            f"{machine['memory_gib']} GiB, Python\n{machine['python']}:"
        )
        write_table(section, intro, titles, dict.fromkeys(rows, measured))
    return 0


def compare(args: argparse.Namespace, base: Path) -> list[str]:
    """Return the rows of the table."""
    cases = [case for case in all_cases(args.scale) if args.only in case.name]
    kinds: list[type[Cluster]] = [KbrokerCluster]
    if not args.no_kafka:
        kafka_classpath()
        kinds.append(KafkaCluster)
    figures: dict[str, Figures] = {kind.name: {case.name: {} for case in cases} for kind in kinds}
    for number in range(args.rounds):
        for kind in kinds if number % 2 else reversed(kinds):
            run_round(kind(base / f"{kind.__name__}-{number}"), cases, figures[kind.name])
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": environment(), "figures": figures}, indent=1))
    theirs = figures.get(KafkaCluster.name, {})
    return [
        line
        for case in cases
        for line in rows_of(case, figures[KbrokerCluster.name][case.name], theirs.get(case.name, {}))
    ]


if __name__ == "__main__":
    raise SystemExit(main())
