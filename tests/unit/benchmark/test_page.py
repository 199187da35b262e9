"""The sections of docs/benchmarks.md that the benchmark writes."""

from pathlib import Path

import pytest

from scripts.benchmark.report import PAGE, write_section, write_table

HEADING = "| case | figure |\n|---|---|"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- table: how it is written -->\nold\n<!-- end of table -->\nafter\n")
    return path


def test_a_section_is_replaced(page: Path) -> None:
    write_section("table", "new\n", page)
    assert page.read_text() == "before\n<!-- table: how it is written -->\n\nnew\n\n<!-- end of table -->\nafter\n"


def test_rows_of_other_cases_remain(page: Path) -> None:
    write_table("table", "machine", HEADING, {"| one | 1 |": "2026-01-01", "| two | 2 |": "2026-01-01"}, page)
    write_table("table", "machine", HEADING, {"| two | 3 |": "2026-01-02", "| three | 4 |": "2026-01-02"}, page)
    assert page.read_text().splitlines()[3:9] == [
        "machine",
        "",
        "| case | figure | measured |",
        "|---|---|---|",
        "| one | 1 | 2026-01-01 |",
        "| two | 3 | 2026-01-02 |",
    ]
    assert "| three | 4 | 2026-01-02 |\n\n<!-- end" in page.read_text()


@pytest.mark.parametrize(
    ("intro", "heading"), [("another machine", HEADING), ("machine", "| case | other |\n|---|---|")]
)
def test_rows_that_are_not_comparable_are_removed(intro: str, heading: str, page: Path) -> None:
    write_table("table", "machine", HEADING, {"| one | 1 |": "2026-01-01"}, page)
    write_table("table", intro, heading, {"| two | 2 |": "2026-01-02"}, page)
    assert "| one |" not in page.read_text()
    assert "| two | 2 | 2026-01-02 |" in page.read_text()


@pytest.mark.parametrize(
    "name",
    [
        "clients",
        "cluster",
        "groups",
        "moves",
        "scaling",
        "capacity",
        "system-calls",
        "profile",
        "growth",
        "install",
        "install-size",
    ],
)
def test_the_page_has_each_section(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    write_section(name, "new", copy)
    assert "\nnew\n" in copy.read_text()


def test_a_missing_section_is_an_error(page: Path) -> None:
    with pytest.raises(SystemExit, match="has no section chart"):
        write_section("chart", "", page)
