"""Run kbroker and Apache Kafka 4.4.0 side by side and print a table of ratios.

Each round measures every server once, in turn: kbroker, Kafka, and Kafka again as the control. The control's ratio
shows the noise of the machine. Figures are medians; the spread is (max - min) / median. The server's processor time is
that of all its threads and child processes, in user and in system mode.
"""

import sys
from contextlib import ExitStack

from scripts.benchmark.cases import Case, Measured, all_cases, transaction_cases
from scripts.benchmark.compaction import compaction_cases
from scripts.benchmark.frame import (
    add_options,
    footer,
    intro,
    is_chosen,
    parser,
    rounds_text,
    running,
    scratch_directory,
    today,
    write_json,
)
from scripts.benchmark.peers import Kafka, Kbroker, Peer, kafka_classpath
from scripts.benchmark.pipeline import ALONE, Pipeline
from scripts.benchmark.report import HEADING, row, summary, write_table

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


def main() -> int:
    options = parser("", __doc__, 5)
    add_options(options)
    args = options.parse_args()
    kafka_classpath()
    with scratch_directory() as base, ExitStack() as stack:
        ours, theirs = Kbroker(base / "kbroker"), Kafka(base / "kafka")
        pipeline = Pipeline()
        known = (*all_cases(), *compaction_cases(), *transaction_cases(), *pipeline.cases())
        cases = [case for case in known if is_chosen(case.name, args.only)]
        results: list[Result] = []
        for owner in [getattr(case.prepare, "__self__", None) for case in cases] + [pipeline]:
            if owner is not None and hasattr(owner, "close"):
                stack.callback(owner.close)
        stack.enter_context(running(ours, theirs))
        print(footer("Apache Kafka 4.4.0", rounds_text(args.rounds)))
        print(HEADING)
        for case in cases:
            result = measure(case, ours, theirs, min(args.rounds, case.rounds))
            results.append(result)
            line = row(result)
            print(line, flush=True)
            if args.write:
                about = intro("--write", after=", Apache Kafka 4.4.0 with a heap of 1 GiB")
                write_table(
                    "clients", about, HEADING, {line: f"{today()}, {rounds_text(min(args.rounds, case.rounds))}"}
                )
        if is_chosen(ALONE, args.only):
            print("\n| kbroker alone | figure | unit | of |\n|---|---|---|---|")
            for figure in pipeline.alone(ours, args.rounds):
                print(figure.row())
                results.append(figure.as_json())
    for line in beside_quiet(results):
        print(line)
    write_json(args, results=results)
    missed = [result["case"] for result in results if not result.get("met", True)]
    if missed:
        print(f"below the bound: {', '.join(map(str, missed))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
