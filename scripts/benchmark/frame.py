"""What all benchmarks share: options, servers that are removed afterwards, and where their figures go."""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.benchmark.peers import Peer, environment
from scripts.benchmark.report import write_table


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def parser(option: str, text: str | None, rounds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have. `rounds`: their default number."""
    result = argparse.ArgumentParser(
        prog=f"scripts/bench {option}".strip(),
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--rounds", type=positive, default=rounds, help=f"default {rounds}")
    return result


def add_options(result: argparse.ArgumentParser, *, only: bool = True, kafka: bool = False) -> None:
    """Add those of benchmarks whose figures go into docs/benchmarks.md."""
    add = result.add_argument
    if only:
        add("--only", metavar="TEXT", action="append", default=[],
            help="only the cases whose name contains this; may be repeated")  # fmt: skip
    if kafka:
        add("--no-kafka", action="store_true", help="measure kbroker only")
    add("--write", action="store_true", help="update the rows of these cases in docs/benchmarks.md")
    add("--json", metavar="FILE", help="write the figures of all rounds here as well")


def is_chosen(name: str, only: Sequence[str]) -> bool:
    return not only or any(text in name for text in only)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def running(*peers: Peer) -> Iterator[None]:
    """Start servers; stop them and remove their files at the end of the context."""
    try:
        for peer in peers:
            peer.prepare()
            peer.start()
        yield
    finally:
        for peer in peers:
            peer.remove()


def today() -> str:
    return time.strftime("%Y-%m-%d")


def rounds_text(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def footer(*parts: str) -> str:
    """Return the date, the machine and other parts, for the line above a table."""
    machine = environment()
    cores, memory = f"{machine['cores']} cores", f"{machine['memory_gib']} GiB"
    return ", ".join((today(), cores, memory, f"Python {machine['python']}", *parts))


def intro(command: str, what: str = "Measured", after: str = "") -> str:
    """Return the sentence above a table of docs/benchmarks.md. `command`: the options of ./scripts/bench."""
    machine = environment()
    return (
        f"{what} by `./scripts/bench {command}` on a machine of {machine['cores']} cores and "
        f"{machine['memory_gib']} GiB, Python\n{machine['python']}{after}:"
    )


def publish(
    args: argparse.Namespace, section: str, command: str, heading: str, rows: Sequence[str], measured: str
) -> None:
    """Print a table, and write it to docs/benchmarks.md with --write. `measured`: when, and in how many rounds."""
    print("\n".join((heading, *rows)), flush=True)
    if args.write:
        write_table(section, intro(f"{command} --write"), heading, dict.fromkeys(rows, measured))


def write_json(args: argparse.Namespace, **figures: object) -> None:
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": environment(), **figures}, indent=1))


# Tables with a column for each server, whose figures are medians.

COMPARISON = "| case | kbroker | Apache Kafka | ratio | bound |\n|---|---|---|---|---|"


def comparison(title: str, ours: float | None, theirs: float | None, *others: str) -> str:
    """Return a row; `others`: its cells after the ratio. A figure that was not measured is None."""
    cells = [title, *("" if figure is None else number(figure) for figure in (ours, theirs))]
    cells.append("" if ours is None or theirs is None else f"**{ours / max(theirs, 1e-9):.2f}**")
    return f"| {' | '.join((*cells, *others))} |"


def median_of(figures: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Return the median of a figure of several rounds, some of which may lack it; None if all do."""
    values = [each[name] for each in figures if name in each]
    return statistics.median(values) if values else None


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
