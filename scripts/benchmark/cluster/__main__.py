"""Three brokers of kbroker and three nodes of Apache Kafka 4.4.0, side by side, with acks=all: medians of some rounds.

With --scaling instead, kbroker alone: two brokers on two cores against one.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmark.cluster.admin import start
from scripts.benchmark.cluster.cases import Case, all_cases
from scripts.benchmark.cluster.clusters import Cluster, KafkaCluster, KbrokerCluster, measure_clusters
from scripts.benchmark.cluster.scaling import SCALING_HEADING, measure_scaling
from scripts.benchmark.frame import (
    COMPARISON,
    add_options,
    comparison,
    footer,
    is_chosen,
    median_of,
    parser,
    publish,
    rounds_text,
    scratch_directory,
    today,
    write_json,
)

# The figures of a round, by case and unit.
Figures = dict[str, dict[str, float]]


def measure_round(cluster: Cluster, cases: Sequence[Case]) -> Figures:
    start(cluster)
    figures: Figures = {}
    for number, case in enumerate(cases, 1):
        figures[case.name] = case.measure(cluster)
        print(f"{cluster.name}, {case.name}: {figures[case.name]}", file=sys.stderr, flush=True)
        if case.ends_broker and number < len(cases):
            cluster.stop()
            start(cluster)
    return figures


def rows_of(case: Case, ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[str]:
    """Return the rows of a case. `theirs` is empty if Kafka was not measured."""
    mine, other = ([figures[case.name] for figures in side] for side in (ours, theirs))
    rows = []
    for unit in mine[0]:
        sign, bound = case.bounds.get(unit, ("", 0.0))
        bound_text = f"{sign} {bound:.2f}" if sign and theirs else ""
        rows.append(comparison(f"{case.name}, {unit}", median_of(mine, unit), median_of(other, unit), bound_text))
    return rows


def compare(args: argparse.Namespace, base: Path) -> list[str]:
    """Return the rows of the table."""
    cases = [case for case in all_cases(args.scale) if is_chosen(case.name, args.only)]
    figures = measure_clusters(base, args.rounds, args.no_kafka, lambda cluster: measure_round(cluster, cases))
    write_json(args, figures=figures)
    theirs = figures.get(KafkaCluster.name, [])
    return [line for case in cases for line in rows_of(case, figures[KbrokerCluster.name], theirs)]


def main() -> int:
    options = parser("--cluster", __doc__, 3)
    add_options(options, kafka=True)
    options.add_argument("--scale", type=float, default=1.0, help="multiplies the numbers of records")
    options.add_argument("--scaling", action="store_true", help="instead, two brokers on two cores against one")
    options.add_argument("--seconds", type=float, default=4, help="with --scaling: of each measurement; default 4")
    args = options.parse_args()
    measured = f"{today()}, {rounds_text(args.rounds)}"
    with scratch_directory() as base:
        rows = measure_scaling(base, args.rounds, args.seconds, args.only) if args.scaling else compare(args, base)
    print(footer(rounds_text(args.rounds)), end="\n\n")
    if args.scaling:
        publish(args, "scaling", "--cluster --scaling", SCALING_HEADING, rows, measured)
    else:
        publish(args, "cluster", "--cluster", COMPARISON, rows, measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
