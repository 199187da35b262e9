"""The table of moves: medians of the rounds, their ratios, and what the project requires."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

HEADING = "| case | kbroker | Apache Kafka | ratio | bound |\n|---|---|---|---|---|"


class Row(NamedTuple):
    """`figure`: its name in a round's figures. `ratio_bound`: of kbroker to Kafka; `own_bound`: of kbroker's figure."""

    title: str
    figure: str
    ratio_bound: float | None = None
    own_bound: float | None = None


def rows(size: str, throttle: str, rate: int) -> list[Row]:
    """Return the table's rows. `size` and `throttle`: with their units."""
    move, during = f"move {size}", f"during a move at {throttle}"
    clients = f"{rate:,} records/s"
    return [
        Row(f"{move}, s", "move s", ratio_bound=1.0),
        Row(f"{move}, processor time, user s", "move user s"),
        Row(f"{move}, processor time, system s", "move system s"),
        Row(f"{move}, largest VmRSS of all processes, MiB", "move MiB"),
        Row(f"{move} at {throttle}, s", "throttled s"),
        Row(f"produce at {clients}, p50 ms", "quiet p50"),
        Row(f"produce at {clients}, p50 ms {during}", "moving p50"),
        Row(f"produce at {clients}, p99 ms", "quiet p99"),
        Row(f"produce at {clients}, p99 ms {during}", "moving p99"),
        Row(f"produce at {clients}, p99 {during} / alone", "p99 ratio", own_bound=1.5),
        Row(f"send to poll at {clients}, p99 ms", "quiet end_to_end_p99"),
        Row(f"send to poll at {clients}, p99 ms {during}", "moving end_to_end_p99"),
        Row(f"send to poll at {clients}, p99 {during} / alone", "end_to_end_p99 ratio", own_bound=1.5),
    ]


def line_of(row: Row, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return a row of the table. `ours`, `theirs`: the figures of the rounds; `theirs` may be empty."""
    mine = statistics.median(ours)
    bound = ""
    if row.ratio_bound is not None:
        bound = f"≤ {row.ratio_bound:.2f}"
    elif row.own_bound is not None:
        bound = f"kbroker ≤ {row.own_bound:.2f}"
    cells = [row.title, number(mine), "", "", bound]
    if theirs:
        other = statistics.median(theirs)
        cells[2:4] = [number(other), f"**{mine / other:.2f}**"]
    return "| " + " | ".join(cells) + " |"


def lines_of(
    table: Sequence[Row], ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> list[str]:
    """`ours`, `theirs`: the figures of each round, by name."""
    return [line_of(row, [each[row.figure] for each in ours], [each[row.figure] for each in theirs]) for row in table]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
