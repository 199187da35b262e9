"""The figures of README.md and cluster.md are those of benchmarks.md, which `./scripts/bench --write` replaces."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
THOUSANDTH = 1 / 1000
# Each row of README.md: the cases of benchmarks.md, and the factor between their units.
README_ROWS = {
    "produce, 100-byte records, 64 KiB batches": (["produce 100 B, 1 partition, 64 KiB batches"], 1),
    "consume, 100-byte records, 6 partitions": (["consume 100 B, 6 partitions"], 1),
    "end-to-end latency, p50 / p99": (["end to end, p50", "end to end, p99"], THOUSANDTH),
    "start to first acknowledged record": (["start to first acknowledged record"], 1),
    "memory after producing": (["resident memory after the produce cases"], 1),
    "three brokers: produce, 1 KiB records, `acks=all`": (
        ["produce 1 KiB, 6 partitions, default batches, records/s"],
        1,
    ),
    "three brokers: memory after producing": (["memory of all processes, MiB, VmRSS"], 1),
}
# Sentences of cluster.md, with the cases of their figures.
CLUSTER_SENTENCES = {
    r"each of three brokers uses about (\S+) MiB": ["10,000 partitions, resident MiB of a broker"],
    r"use (\S+) ms of processor time per second, against (\S+) ms without partitions": [
        "10,000 partitions, idle processor ms/s",
        "10,000 partitions, idle processor ms/s, no partitions",
    ],
    r"before it joins: 10,000 take (\S+) s": ["10,000 partitions, s of restart, until it listens"],
}


def table_rows(page: str) -> dict[str, list[str]]:
    """Return the cells of each row of the tables of a page, by the first one. A name keeps its first row."""
    rows: dict[str, list[str]] = {}
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("| "):
            name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows.setdefault(name, cells)
    return rows


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell, without the spread that follows the figure in benchmarks.md."""
    return [float(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,.]*", cell.partition("±")[0])]


@pytest.mark.parametrize("name", README_ROWS)
def test_the_figures_of_the_readme(name: str) -> None:
    measured = table_rows("docs/benchmarks.md")
    readme = {re.sub(r" \(2026-[0-9-]+\)$", "", row): cells for row, cells in table_rows("README.md").items()}
    cases, factor = README_ROWS[name]
    for column in (0, 1):
        expected = [numbers(measured[case][column])[0] * factor for case in cases]
        assert numbers(readme[name][column]) == pytest.approx(expected, rel=0.03)


def test_each_figure_of_the_readme_is_checked() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## Speed\n")[2].partition("\n## ")[0]
    names = [
        re.sub(r" \(2026-[0-9-]+\)$", "", line.split("|")[1].strip()) for line in section.splitlines() if "|" in line
    ]
    assert set(names) - {"case", "---"} == set(README_ROWS)


@pytest.mark.parametrize("sentence", CLUSTER_SENTENCES)
def test_the_figures_of_cluster_md(sentence: str) -> None:
    measured = table_rows("docs/benchmarks.md")
    text = " ".join((ROOT / "docs/cluster.md").read_text().split())
    found = re.search(sentence, text)
    assert found is not None, sentence
    expected = [numbers(measured[case][0])[0] for case in CLUSTER_SENTENCES[sentence]]
    assert [float(number) for number in found.groups()] == pytest.approx(expected, rel=0.01)
