"""Standard output of the commands: tables on a terminal, aligned columns in a pipe, JSON with --json."""

import json
import sys
from collections.abc import Iterable, Sequence

Cell = str | int | None

MISSING = "-"


def print_json(value: object) -> None:
    """Print one indented JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_note(message: str) -> None:
    """Print a remark on standard error, so that standard output contains only results."""
    print(message, file=sys.stderr, flush=True)


def print_heading(text: str, detail: str = "") -> None:
    """Print a line above a table, bold on a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console().print(Text.assemble((text, "bold"), "  " if detail else "", (detail, "dim")), soft_wrap=True)
    else:
        print(f"{text}  {detail}" if detail else text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table on a terminal; elsewhere aligned columns that awk and grep can parse."""
    cells = [list(row) for row in rows]
    numeric = [_is_numeric(row[i] for row in cells) for i in range(len(columns))]
    texts = [[_cell_text(cell) for cell in row] for row in cells]
    if sys.stdout.isatty():
        _print_rich_table(columns, texts, numeric)
    else:
        print(align([[column.upper().replace(" ", "_") for column in columns], *texts], numeric))


def align(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """Return columns of equal width, two spaces apart, numbers to the right, without trailing blanks."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(numeric))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    )


def _cell_text(cell: Cell) -> str:
    return MISSING if cell is None or cell == "" else str(cell)


def _is_numeric(cells: Iterable[Cell]) -> bool:
    present = [cell for cell in cells if cell is not None]
    return bool(present) and all(isinstance(cell, int) for cell in present)


def _print_rich_table(columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
    for column, right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in texts:
        table.add_row(*(Text(cell, style="dim" if cell == MISSING else "") for cell in row))
    Console().print(table)
