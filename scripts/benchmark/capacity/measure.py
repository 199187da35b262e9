"""Measures every case on every server, in several rounds."""

import sys
from collections.abc import Mapping, Sequence

from scripts.benchmark.capacity.cases import Case
from scripts.benchmark.capacity.client import connected
from scripts.benchmark.capacity.server import Server
from scripts.benchmark.report import summary

# One column of the table: the values of all rounds, by the figure's name.
Figures = dict[str, list[float]]

RATE = "responses/s"
PROCESSOR = "processor time per response"
UNITS = {
    RATE: "1/s",
    PROCESSOR: "us",
    "user time per response": "us",
    "system time per response": "us",
    "throughput": "MB/s",
    "p50": "us",
    "p99": "us",
    "client's processor time per response": "us",
}


def measure(server: Server, case: Case, seconds: float) -> dict[str, float]:
    """Run a case once. Returns the figures by name, in the units of UNITS."""
    with (
        case.prepare(server) as load,
        connected(server.port, load, seconds, name=f"{server.label}, {case.name}") as client,
    ):
        before = server.peer.processor_time()
        run = client.run()
        after = server.peer.processor_time()
    if run.bytes_received < run.responses * load.response_bytes:
        size = run.bytes_received / run.responses
        raise SystemExit(f"{server.label}, {case.name}: responses of {size:.0f} bytes, expected {load.response_bytes}")
    user, system = (1e6 * (now - then) / run.responses for now, then in zip(after, before, strict=True))
    megabytes_per_s = (run.bytes_sent + run.bytes_received) / run.seconds / 1e6
    client_us = run.client_us / run.responses
    values = (run.responses / run.seconds, user + system, user, system, megabytes_per_s, run.p50_us, run.p99_us)
    return dict(zip(UNITS, (*values, client_us), strict=True))


def run_rounds(
    columns: Sequence[tuple[str, Server]], cases: Sequence[Case], rounds: int, seconds: float
) -> dict[str, dict[str, Figures]]:
    """Measure the cases with each column's server in turn; returns the figures by case and column.

    A first round warms the servers up and is not counted. A case that fails is reported and left out.
    """
    figures: dict[str, dict[str, Figures]] = {
        case.name: {column: {name: [] for name in UNITS} for column, _ in columns} for case in cases
    }
    for number in range(-1, rounds):
        first = number % len(columns)
        for case in [case for case in cases if case.name in figures]:
            try:
                for column, server in (*columns[first:], *columns[:first]):
                    for name, value in measure(server, case, seconds).items():
                        if number >= 0:
                            figures[case.name][column][name].append(value)
            except SystemExit as error:
                print(f"\nleft out: {error}", file=sys.stderr)
                del figures[case.name]
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return figures


# Formats the figures of the cases as a Markdown table.

CONTROL = "control"
MORE_IS_BETTER = {RATE, "throughput"}

Result = dict[str, object]


def results_of(case: Case, figures: Mapping[str, Figures], ours: str, theirs: str) -> dict[str, Result]:
    """Return the summary of each figure of a case."""
    bounds = {RATE: case.at_least, PROCESSOR: case.at_most}
    results = {}
    for name, unit in UNITS.items():
        better = "more" if name in MORE_IS_BETTER else "less"
        columns = {column: of[name] for column, of in figures.items()}
        title = f"{case.name}, {name}"
        results[name] = summary(title, unit, better, bounds.get(name), columns, ours, theirs)
    return results


def heading(columns: Sequence[str]) -> str:
    """Return the first two lines of the table. `columns`: one or two servers, and perhaps the control."""
    titles = ["case", "responses/s", "processor time per response, us (user + system)", "p50, us", "p99, us"]
    if len(columns) > 1:
        titles = ["case", "responses/s", "ratio", "processor time per response, us (user + system)", "ratio",
                  "p50, us", "p99, us"]  # fmt: skip
    if CONTROL in columns:
        titles.append("control: responses/s, processor time")
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def row(case: Case, results: Mapping[str, Result], ours: str, theirs: str, *, control: bool = False) -> str:
    """Return the line of a case. `control`: with the column of the control, which the published table does not have."""
    rate, used = results[RATE], results[PROCESSOR]
    sides = [side for side in (ours, theirs) if side in rate]

    def plain(name: str) -> str:
        return " / ".join(_number(results[name][side]) for side in sides)

    parts = " / ".join(
        f"{_number(used[side])} ({_number(results['user time per response'][side])} + "
        f"{_number(results['system time per response'][side])})"
        for side in sides
    )
    cells = [case.name, plain(RATE), parts, plain("p50"), plain("p99")]
    if theirs in rate:
        cells.insert(2, _ratio(rate))
        cells.insert(4, _ratio(used))
    if control:
        cells.append(f"{rate['control']:.2f}, {used['control']:.2f}")
    return f"| {' | '.join(cells)} |"


def _number(value: object) -> str:
    assert isinstance(value, float)
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}"


def _ratio(result: Result) -> str:
    sign = "≥" if result["better"] == "more" else "≤"
    bound = "" if result["bound"] is None else f" ({sign} {result['bound']:.2f})"
    return f"**{result['ratio']:.2f}**{bound}"
