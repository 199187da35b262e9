"""Measure what a broker can do itself, with a client that costs almost nothing.

A client written in C sends prepared requests and counts the responses. kbroker and Apache Kafka 4.3.1 are measured in
turn, and Kafka a second time as the control, whose ratio shows the noise of the machine. Figures are medians.

With --kbroker, source trees of kbroker are measured instead: one alone, or two in turn, with ratios first / second.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmark.capacity.cases import Case, all_cases
from scripts.benchmark.capacity.measure import Figures, run_rounds
from scripts.benchmark.capacity.server import Server
from scripts.benchmark.capacity.table import CONTROL, heading, results_of, row
from scripts.benchmark.peers import Kafka, Kbroker, Peer, environment


def peers_of(base: Path, trees: Sequence[str]) -> list[tuple[str, Peer]]:
    """Return the servers and their labels. A tree is DIR or LABEL=DIR."""
    if not trees:
        return [("kbroker", Kbroker(base / "kbroker")), ("kafka", Kafka(base / "kafka"))]
    peers: list[tuple[str, Peer]] = []
    for number, tree in enumerate(trees):
        label, _, directory = tree.rpartition("=")
        path = Path(directory).resolve()
        if not (path / "kbroker" / "__main__.py").exists():
            raise SystemExit(f"{path} is not a source tree of kbroker")
        label = label or path.name
        if label in [other for other, _ in peers]:
            label = f"{label} {number + 1}"
        peers.append((label, Kbroker(base / str(number), path)))
    return peers


def chosen_cases(only: Sequence[str]) -> list[Case]:
    """Return the cases whose name contains one of the texts; all without texts."""
    cases = [case for case in all_cases() if not only or any(text in case.name for text in only)]
    if not cases:
        raise SystemExit("no case has such a name; there are: " + "; ".join(case.name for case in all_cases()))
    return cases


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="scripts/bench --capacity", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    result.add_argument("--rounds", type=int, default=5, help="after a first one that is not counted; default 5")
    result.add_argument("--seconds", type=float, default=4, help="of each measurement; default 4")
    result.add_argument("--only", metavar="TEXT", action="append", default=[],
                        help="only the cases whose name contains this; may be repeated")  # fmt: skip
    result.add_argument("--kbroker", metavar="[LABEL=]DIR", action="append", default=[],
                        help="measure this source tree of kbroker, not Kafka; at most twice")  # fmt: skip
    result.add_argument("--no-control", action="store_true", help="do not measure the second server twice")
    result.add_argument("--newest-versions", action="store_true",
                        help="the newest versions of all requests, not those of the published table")  # fmt: skip
    result.add_argument("--json", metavar="FILE", help="write the figures here as well")
    return result


def main() -> int:
    args = parser().parse_args()
    if len(args.kbroker) > 2:
        raise SystemExit("--kbroker: at most two trees")
    cases = chosen_cases(args.only)
    base = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    peers = peers_of(base, args.kbroker)
    ours, theirs = peers[0][0], peers[-1][0] if len(peers) > 1 else ""
    try:
        columns = []
        for label, peer in peers:
            peer.prepare()
            peer.start()
            columns.append((label, Server(peer, label, newest_versions=args.newest_versions)))
        if theirs and not args.no_control:
            columns.append((CONTROL, columns[-1][1]))
        figures = run_rounds(columns, cases, args.rounds, args.seconds)
    finally:
        for _, peer in peers:
            peer.remove()
        shutil.rmtree(base, ignore_errors=True)
    machine = environment()
    print(f"{time.strftime('%Y-%m-%d')}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
          f"Python {machine['python']}, {args.rounds} rounds of {args.seconds:g} s: ", end="")  # fmt: skip
    print_table(cases, figures, [column for column, _ in columns], ours, theirs)
    if args.json:
        results = [result for case in cases for result in results_of(case, figures[case.name], ours, theirs).values()]
        Path(args.json).write_text(json.dumps({"machine": machine, "results": results}, indent=1))
    return 0


def print_table(
    cases: Sequence[Case], figures: dict[str, dict[str, Figures]], columns: Sequence[str], ours: str, theirs: str
) -> None:
    print(heading(columns))
    for case in cases:
        print(row(case, results_of(case, figures[case.name], ours, theirs), ours, theirs))


if __name__ == "__main__":
    raise SystemExit(main())
