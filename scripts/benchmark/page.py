"""The sections of docs/benchmarks.md that the benchmark writes. A pair of comments marks each of them."""

import re
from collections.abc import Mapping
from pathlib import Path

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
