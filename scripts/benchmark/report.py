"""The report of a case: medians, their ratio, and the spread of the rounds."""

import statistics
from collections.abc import Mapping, Sequence


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
