"""Run kbroker and Apache Kafka 4.3.1 side by side and print a table of ratios.

Each round measures every server once, in turn: kbroker, Kafka, and Kafka again as the control. The control's ratio
shows the noise of the machine. Figures are medians; the spread is (max - min) / median.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from cases import Case, all_cases
from compaction import compaction_cases
from peers import Kafka, Kbroker, Peer, environment, kafka_classpath
from pipeline import ALONE, Pipeline
from report import row, summary
from transactions import transaction_cases


def measure(case: Case, ours: Peer, theirs: Peer, rounds: int) -> dict[str, object]:
    for peer in (ours, theirs):
        case.prepare(peer)
    figures: dict[str, list[float]] = {"kbroker": [], "kafka": [], "control": []}
    order = [("kbroker", ours), ("kafka", theirs), ("control", theirs)]
    for number in range(rounds):
        for column, peer in order[number % 3 :] + order[: number % 3]:
            figures[column].append(case.measure(peer))
        print(".", end="", file=sys.stderr, flush=True)
    return summary(case.name, case.unit, case.better, case.bound, figures)


def beside_quiet(results: list[dict[str, object]]) -> list[str]:
    """Return the growth of p99 with idle connections, a cold reader and a compaction, against the quiet server."""
    by_name = {str(result["case"]): result for result in results if "ratio" in result}
    quiet = by_name.get("produce latency at 2,000/s, p99")
    return [
        f"{name}: kbroker {result['kbroker'] / quiet['kbroker']:.2f} times its own quiet p99, "  # type: ignore[operator]
        f"Kafka {result['kafka'] / quiet['kafka']:.2f} times"  # type: ignore[operator]
        for name, result in by_name.items()
        if quiet is not None and name.startswith("p99 ")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", metavar="TEXT", help="only the cases whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    kafka_classpath()
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    ours, theirs = Kbroker(base / "kbroker"), Kafka(base / "kafka")
    pipeline = Pipeline()
    known = (*all_cases(), *compaction_cases(), *transaction_cases(), *pipeline.cases())
    cases = [case for case in known if not args.only or args.only in case.name]
    results = []
    try:
        for peer in (ours, theirs):
            peer.prepare()
            peer.start()
        machine = environment()
        print(f"{time.strftime('%Y-%m-%d')}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
              f"Python {machine['python']}, Apache Kafka 4.3.1, {args.rounds} rounds")  # fmt: skip
        print("| case | kbroker | Apache Kafka | unit | ratio | bound | control |\n|---|---|---|---|---|---|---|")
        for case in cases:
            results.append(measure(case, ours, theirs, min(args.rounds, case.rounds)))
            print(row(results[-1]), flush=True)
        if not args.only or args.only in ALONE:
            print("\n| kbroker alone | figure | unit | of |\n|---|---|---|---|")
            for figure in pipeline.alone(ours, args.rounds):
                print(figure.row())
                results.append(figure.as_json())
    finally:
        for peer in (ours, theirs):
            peer.remove()
        for owner in [getattr(case.prepare, "__self__", None) for case in cases] + [pipeline]:
            closer = getattr(owner, "close", None)
            if closer is not None:
                closer()
        shutil.rmtree(base, ignore_errors=True)
    for line in beside_quiet(results):
        print(line)
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": environment(), "results": results}, indent=1))
    missed = [result["case"] for result in results if not result.get("met", True)]
    if missed:
        print(f"below the bound: {', '.join(map(str, missed))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
