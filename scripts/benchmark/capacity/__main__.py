"""Measure the capacity of a broker, with a client that uses almost no processor time.

A client written in C sends prepared requests and counts the responses. kbroker and Apache Kafka 4.4.0 are measured in
turn, and Kafka a second time as the control, whose ratio shows the noise of the machine. Figures are medians.

With --kbroker, source trees of kbroker are measured instead: one alone, or two in turn, with ratios first / second.
"""

import argparse
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.benchmark.capacity import growth, profile, syscalls
from scripts.benchmark.capacity.cases import Case, all_cases
from scripts.benchmark.capacity.measure import CONTROL, Result, heading, results_of, row, run_rounds
from scripts.benchmark.capacity.server import started
from scripts.benchmark.frame import add_options, footer, intro, is_chosen, parser, scratch_directory, today, write_json
from scripts.benchmark.peers import ROOT, Kafka, Kbroker, Peer
from scripts.benchmark.report import PAGE, write_section, write_table

IMAGES = ROOT / "docs" / "images"


def tree_of(option: str) -> tuple[str, Path]:
    """Return the label and the source tree of DIR or LABEL=DIR."""
    label, _, directory = option.rpartition("=")
    path = Path(directory).resolve()
    if not (path / "kbroker" / "__main__.py").exists():
        raise SystemExit(f"{path} is not a source tree of kbroker")
    return label or path.name, path


def peers_of(base: Path, trees: Sequence[str]) -> list[tuple[str, Peer]]:
    """Return the servers and their labels."""
    if not trees:
        return [("kbroker", Kbroker(base / "kbroker")), ("kafka", Kafka(base / "kafka"))]
    peers: list[tuple[str, Peer]] = []
    for number, tree in enumerate(trees):
        label, path = tree_of(tree)
        if label in [other for other, _ in peers]:
            label = f"{label} {number + 1}"
        peers.append((label, Kbroker(base / str(number), path)))
    return peers


def chosen_cases(only: Sequence[str]) -> list[Case]:
    """Return the cases whose name contains one of the texts, or all cases if there are no texts."""
    cases = [case for case in all_cases() if is_chosen(case.name, only)]
    if not cases:
        raise SystemExit("no case has such a name; there are: " + "; ".join(case.name for case in all_cases()))
    return cases


def options() -> argparse.ArgumentParser:
    result = parser("--capacity", __doc__, 5)
    add_options(result)
    add = result.add_argument
    add("--seconds", type=float, default=4, help="duration of each measurement; default 4")
    add("--kbroker", metavar="[LABEL=]DIR", action="append", default=[],
        help="measure this source tree of kbroker, not Kafka; at most twice")  # fmt: skip
    add("--no-control", action="store_true", help="do not measure the second server twice")
    add("--newest-versions", action="store_true",
        help="send the newest versions of all requests, not those of the published table")  # fmt: skip
    add("--strace", action="store_true", help="also count system calls per response, in separate short runs")
    add("--profile", action="store_true",
        help="instead, record the flame graphs of docs/benchmarks.md; with --only: of selected cases, and leave the "
        "page as it is")  # fmt: skip
    add("--growth", action="store_true",
        help="instead, draw the chart of docs/benchmarks.md: how the cost of a response grows with the length of the "
        "log and the number of idle partitions, connections, groups and producer ids")  # fmt: skip
    return result


def main() -> int:
    args = options().parse_args()
    if len(args.kbroker) > 2:
        raise SystemExit("--kbroker: at most two trees")
    if args.kbroker and args.write:
        raise SystemExit("--write: the page compares kbroker with Apache Kafka")
    if args.strace and not syscalls.have_strace():
        raise SystemExit("--strace: strace is not installed")
    # Many connections need many files. The servers and the client inherit the limit.
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    with scratch_directory() as base:
        if args.profile:
            draw_profiles(args, base)
        elif args.growth:
            draw_growth(args, base)
        else:
            return compare(args, base)
    return 0


def compare(args: argparse.Namespace, base: Path) -> int:
    """Print the table of the figures. Returns 1 if a case failed."""
    cases = chosen_cases(args.only)
    with started(peers_of(base, args.kbroker), newest_versions=args.newest_versions) as servers:
        columns = [(server.label, server) for server in servers]
        ours, theirs = columns[0][0], columns[1][0] if len(columns) > 1 else ""
        if theirs and not args.no_control:
            columns.append((CONTROL, columns[1][1]))
        figures = run_rounds(columns, cases, args.rounds, args.seconds)
        counts = {}
        if args.strace:
            counts = {
                case.name: {server.label: syscalls.count(server, case) for server in servers}
                for case in cases
                if case.name in figures
            }
    titles = heading([column for column, _ in columns])
    print(f"{footer(rounds(args))}: {' / '.join(server.label for server in servers)}\n\n{titles}")
    results: list[Result] = []
    rows: dict[str, str] = {}
    for case in cases:
        if case.name in figures:
            of_case = results_of(case, figures[case.name], ours, theirs)
            results += of_case.values()
            print(row(case, of_case, ours, theirs, control=CONTROL in figures[case.name]))
            rows[row(case, of_case, ours, theirs)] = f"{today()}, {rounds(args)}"
    if counts:
        print(f"\n{syscalls.table(counts)}")
    if args.write:
        about = intro("--capacity --write", after=", kbroker / Apache Kafka 4.4.0")
        write_table("capacity", about, heading([ours, theirs]), rows)
        if counts:
            lines = syscalls.table(counts).splitlines()
            about = intro("--capacity --strace --write", "Counted")
            write_table("system-calls", about, "\n".join(lines[:2]), dict.fromkeys(lines[2:], today()))
    write_json(args, results=results, system_calls=counts)
    missed = [str(result["case"]) for result in results if not result.get("met", True)]
    if missed and not args.kbroker:
        print(f"outside the bound: {'; '.join(missed)}", file=sys.stderr)
    return int(len(figures) < len(cases))


def draw_profiles(args: argparse.Namespace, base: Path) -> None:
    with started(peers_of(base, args.kbroker or [str(ROOT)])[:1], newest_versions=args.newest_versions) as [server]:
        images = []
        for case in chosen_cases(args.only or profile.SHOWN):
            path = profile.svg_path(IMAGES, case)
            profile.record(server, case, args.seconds, path)
            images.append(f"![{case.name}]({path.relative_to(PAGE.parent)})")
            print(path)
    if not args.only:
        about = intro("--capacity --profile", "Recorded", f", {today()}")
        write_section("profile", "\n\n".join((about, *images)))


def draw_growth(args: argparse.Namespace, base: Path) -> None:
    tree = tree_of(args.kbroker[0] if args.kbroker else str(ROOT))[1]
    costs = {}
    for number, series in enumerate(growth.SERIES):
        if is_chosen(series.title, args.only):
            peers = [(f"{size:,}", Kbroker(base / f"{number}-{size}", tree)) for size in series.sizes]
            with started(peers) as servers:
                costs[series.title] = growth.run_series(servers, series, args.rounds, args.seconds)
            print(".", end="", file=sys.stderr, flush=True)
    print(f"\n{footer(rounds(args))}\n\n{growth.table(costs)}")
    if not args.only:
        chart = IMAGES / "growth.svg"
        growth.draw(costs, chart)
        image = f"![Processor time per response by size]({chart.relative_to(PAGE.parent)})"
        about = intro("--capacity --growth", after=f", {today()}, {rounds(args)}")
        write_section("growth", "\n\n".join((about, image, growth.table(costs))))
    write_json(args, results=costs)


def rounds(args: argparse.Namespace) -> str:
    return f"{args.rounds} rounds of {args.seconds:g} s"


if __name__ == "__main__":
    raise SystemExit(main())
