"""Figures that other pages quote are those of docs/benchmarks.md, rounded as the page rounds them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCE = "produce 100 B, 1 partition, 64 KiB batches"
MEMORY = "resident memory after the produce cases"
START = "start to first acknowledged record"
RESTART = "kill -9 restart, 1,000 partitions, 2 GB"
OVERLOAD = "resident memory after 60 s of overload"
CLUSTER_PRODUCE = "produce 1 KiB, 6 partitions, default batches, records/s"
SCALE = "10,000 partitions, "
# A page, text with a figure of kbroker and perhaps one of Kafka (N), the row, and its unit in that of the page.
QUOTED = [
    ("README.md", "a start in N seconds", START, 1),
    ("README.md", "N MiB of memory", MEMORY, 1),
    ("README.md", "64 KiB batches | N records/s | N records/s", PRODUCE, 1),
    ("README.md", "6 partitions | N records/s | N records/s", "consume 100 B, 6 partitions", 1),
    ("README.md", "p50 / p99 | N / 1.5 ms | N / 3.8 ms", "end to end, p50", 1000),
    ("README.md", "p50 / p99 | 0.50 / N ms | 0.54 / N ms", "end to end, p99", 1000),
    ("README.md", "first acknowledged record | N s | N s", START, 1),
    ("README.md", "| memory after producing | N MiB | N MiB", MEMORY, 1),
    ("README.md", "`acks=all` | N records/s | N records/s", CLUSTER_PRODUCE, 1),
    ("README.md", "three brokers: memory after producing | N MiB | N MiB", "memory of all processes, MiB, VmRSS", 1),
    ("docs/operations.md", "About N MiB, and", MEMORY, 1),
    ("docs/operations.md", "and N MiB after a minute of overload", OVERLOAD, 1),
    ("docs/operations.md", "About N s; after a `kill -9`", START, 1),
    ("docs/operations.md", "after a `kill -9`, N s for 1,000 partitions", RESTART, 1),
    ("docs/cluster.md", "three brokers uses about N MiB", f"{SCALE}resident MiB of a broker", 1),
    ("docs/cluster.md", "use N ms of processor time per second", f"{SCALE}idle processor ms/s", 1),
    ("docs/cluster.md", "against N ms without partitions", f"{SCALE}idle processor ms/s, no partitions", 1),
    ("docs/cluster.md", "10,000 take N s", f"{SCALE}s of restart, until it listens", 1),
]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def measured(row: str) -> list[float]:
    """Return the figures of kbroker and of Kafka in a row of the benchmarks."""
    rows = [line.split(" | ") for line in (ROOT / "docs/benchmarks.md").read_text().splitlines()]
    [cells] = [cells for cells in rows if cells[0] == f"| {row}"]
    return [number(cell.split(" ")[0]) for cell in cells[1:3]]


def is_rounded(text: str, value: float) -> bool:
    """Return whether a figure is a measured one in fewer digits."""
    digits = len(text.replace(",", "").replace(".", "").lstrip("0"))
    return any(number(text) == float(f"{value:.{kept}g}") for kept in range(min(2, digits), digits + 1))


@pytest.mark.parametrize(("page", "quote", "row", "unit"), QUOTED)
def test_a_quoted_figure_is_a_measured_one(page: str, quote: str, row: str, unit: float) -> None:
    text = " ".join((ROOT / page).read_text().split())
    pattern = re.escape(quote).replace("N", r"([\d.,]*\d)")
    found = re.search(pattern, text)
    assert found, f"{page} has no {quote!r}"
    figures = [value / unit for value in measured(row)]
    assert [
        (quoted, value) for quoted, value in zip(found.groups(), figures, strict=False) if not is_rounded(quoted, value)
    ] == []


def test_every_figure_of_the_readme_is_compared() -> None:
    table = (ROOT / "README.md").read_text().partition("## Speed\n")[2].partition("## ")[0]
    cells = "".join("|".join(line.split("|")[2:]) for line in table.splitlines())
    figures = re.findall(r"\d[\d.,]*", cells)
    quotes = [quote for page, quote, *_ in QUOTED if page == "README.md" and " | " in quote]
    assert len(figures) == sum(quote.count("N ") for quote in quotes) > 0
