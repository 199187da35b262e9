"""Run kbroker and Apache Kafka 4.3.1 side by side and print a table of ratios.

Each round measures every server once, in turn: kbroker, Kafka, and Kafka again as the control. The control's ratio
shows the noise of the machine. Figures are medians; the spread is (max - min) / median. The server's processor time is
that of all its threads and child processes, in user and in system mode.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from scripts.benchmark.cases import Case, all_cases
from scripts.benchmark.compaction import compaction_cases
from scripts.benchmark.metering import Measured
from scripts.benchmark.page import write_table
from scripts.benchmark.peers import Kafka, Kbroker, Peer, environment, kafka_classpath
from scripts.benchmark.pipeline import ALONE, Pipeline
from scripts.benchmark.report import HEADING, row, summary
from scripts.benchmark.transactions import transaction_cases

Result = dict[str, object]


def measure(case: Case, ours: Peer, theirs: Peer, rounds: int) -> Result:
    """Return the summary of a case's figures; its "processor_time" is the summary of what the servers used for it."""
    for peer in (ours, theirs):
        case.prepare(peer)
    figures: dict[str, list[Measured]] = {"kbroker": [], "kafka": [], "control": []}
    order = [("kbroker", ours), ("kafka", theirs), ("control", theirs)]
    for number in range(rounds):
        for column, peer in order[number % 3 :] + order[: number % 3]:
            figures[column].append(case.measure(peer))
        print(".", end="", file=sys.stderr, flush=True)
    values = {column: [one.value for one in of] for column, of in figures.items()}
    result = summary(case.name, case.unit, case.better, case.bound, values)
    used = {
        column: [one.processor_time for one in of if one.processor_time is not None] for column, of in figures.items()
    }
    if used["kbroker"]:
        unit = figures["kbroker"][0].processor_unit
        result["processor_time"] = summary("processor time of the server", unit, "less", None, used)
    return result


def beside_quiet(results: list[Result]) -> list[str]:
    """Return the growth of p99 with idle connections, a cold reader and a compaction, against the quiet server."""
    by_name = {str(result["case"]): result for result in results if "ratio" in result}
    quiet = by_name.get("produce latency at 2,000/s, p99")
    return [
        f"{name}: kbroker {result['kbroker'] / quiet['kbroker']:.2f} times its own quiet p99, "  # type: ignore[operator]
        f"Kafka {result['kafka'] / quiet['kafka']:.2f} times"  # type: ignore[operator]
        for name, result in by_name.items()
        if quiet is not None and name.startswith("p99 ")
    ]


def is_chosen(name: str, only: list[str]) -> bool:
    return not only or any(text in name for text in only)


def rounds_of(result: Result) -> str:
    return "1 round" if result["rounds"] == 1 else f"{result['rounds']} rounds"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", metavar="TEXT", action="append", default=[],
                        help="only the cases whose name contains this; may be repeated")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="update the rows of these cases in docs/benchmarks.md")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    kafka_classpath()
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    ours, theirs = Kbroker(base / "kbroker"), Kafka(base / "kafka")
    pipeline = Pipeline()
    known = (*all_cases(), *compaction_cases(), *transaction_cases(), *pipeline.cases())
    cases = [case for case in known if is_chosen(case.name, args.only)]
    results: list[Result] = []
    machine = environment()
    intro = (
        f"Measured by `./scripts/bench --write` on a machine of {machine['cores']} cores and "
        f"{machine['memory_gib']} GiB, Python\n{machine['python']}, Apache Kafka 4.3.1 with a heap of 1 GiB:"
    )
    try:
        for peer in (ours, theirs):
            peer.prepare()
            peer.start()
        print(f"{time.strftime('%Y-%m-%d')}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
              f"Python {machine['python']}, Apache Kafka 4.3.1, {args.rounds} rounds")  # fmt: skip
        print(HEADING)
        for case in cases:
            result = measure(case, ours, theirs, min(args.rounds, case.rounds))
            results.append(result)
            line = row(result)
            print(line, flush=True)
            if args.write:
                write_table("clients", intro, HEADING, {line: f"{time.strftime('%Y-%m-%d')}, {rounds_of(result)}"})
        if is_chosen(ALONE, args.only):
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
        Path(args.json).write_text(json.dumps({"machine": machine, "results": results}, indent=1))
    missed = [result["case"] for result in results if not result.get("met", True)]
    if missed:
        print(f"below the bound: {', '.join(map(str, missed))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
