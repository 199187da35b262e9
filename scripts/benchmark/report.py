"""The report of a case: medians, their ratio, and the spread of the rounds; the tables of docs/benchmarks.md."""

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path


def summary(
    name: str,
    unit: str,
    better: str,
    bound: float | None,
    figures: Mapping[str, Sequence[float]],
    ours: str = "kbroker",
    theirs: str = "kafka",
) -> dict[str, object]:
    """Summarize a case. `figures`: the figures of all rounds, by column.

    The columns are `ours`, `theirs` and "control", which is the server of `theirs` measured once more; the last two may
    be missing, and then there is no ratio.
    """
    medians = {column: statistics.median(values) for column, values in figures.items()}
    result: dict[str, object] = {
        "case": name,
        "unit": unit,
        ours: medians[ours],
        f"spread_{ours}": spread(figures[ours]),
        "bound": bound,
        "better": better,
        "rounds": len(figures[ours]),
        "figures": figures,
    }
    if theirs in figures:
        both = [*figures[theirs], *figures.get("control", ())]
        result[theirs] = statistics.median(both)
        result[f"spread_{theirs}"] = spread(both)
        ratio = result["ratio"] = medians[ours] / max(statistics.median(both), 1e-9)
        result["met"] = bound is None or (ratio >= bound if better == "more" else ratio <= bound)
    if "control" in figures:
        result["control"] = medians[theirs] / max(medians["control"], 1e-9)
    return result


def spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / max(statistics.median(values), 1e-9)


HEADING = (
    "| case | kbroker | Apache Kafka | unit | ratio | bound | control | server's processor time | ratio |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def row(result: Mapping[str, object]) -> str:
    sign = "≥" if result["better"] == "more" else "≤"
    used = result.get("processor_time")
    used_cells = "| | "
    if isinstance(used, dict):
        sides = f"{number(used['kbroker'])} / {number(used['kafka'])}"
        used_cells = f"| {sides} {used['unit']} | {used['ratio']:.2f} "
    return (
        f"| {result['case']} | {number(result['kbroker'])} ±{result['spread_kbroker']:.0%} "
        f"| {number(result['kafka'])} ±{result['spread_kafka']:.0%} | {result['unit']} "
        f"| **{result['ratio']:.2f}** | {sign} {result['bound']:.2f} | {result['control']:.2f} "
        f"{used_cells}|"
    )


def number(value: object) -> str:
    assert isinstance(value, float)
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


# The sections of docs/benchmarks.md that the benchmark writes. A pair of comments marks each of them.

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "benchmarks.md"


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what is between `<!-- name: ... -->` and `<!-- end of name -->`."""
    begin, _, end = _split(name, page)
    page.write_text(f"{begin}\n{text.strip()}\n\n{end}")


def write_table(name: str, intro: str, heading: str, rows: Mapping[str, str], page: Path = PAGE) -> None:
    """Write a table's section: the new rows, and the rows of other cases that the section had.

    `intro`: a sentence about the machine; `heading`: two lines. If one of them differs from the page's, the page's rows
    are not comparable and are removed. `rows`: when the row was measured, by row; this is the last column.
    """
    titles, line = heading.splitlines()
    heading = f"{titles} measured |\n{line}---|"
    old = _split(name, page)[1]
    by_case: dict[str, str] = {}
    if intro in old and heading in old:
        by_case = {_case_of(row): row for row in old.partition(heading)[2].strip().splitlines()}
    by_case |= {_case_of(row): f"{row} {measured} |" for row, measured in rows.items()}
    write_section(name, "\n".join((intro, "", heading, *by_case.values())), page)


def _case_of(row: str) -> str:
    return row.split("|")[1].strip()


def _split(name: str, page: Path) -> tuple[str, str, str]:
    """Return the page up to the section, the section, and the rest. The comments belong to the first and the last."""
    found = re.fullmatch(rf"(.*<!-- {name}:[^\n]*-->\n)(.*)(<!-- end of {name} -->.*)", page.read_text(), re.DOTALL)
    if found is None:
        raise SystemExit(f"{page} has no section {name}")
    begin, section, end = found.groups()
    return begin, section, end
