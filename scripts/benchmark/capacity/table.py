"""Formats the figures of the cases as a Markdown table."""

from collections.abc import Mapping, Sequence

from scripts.benchmark.capacity.case import Case
from scripts.benchmark.capacity.measure import PROCESSOR, RATE, UNITS, Figures
from scripts.benchmark.report import summary

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
