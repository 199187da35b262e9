"""What the reading commands print: tables for eyes, aligned columns for pipes, JSON for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Cell = str | int | None
Item = TypeVar("Item")

SHOW_PROGRESS_AFTER_S = 1.0
MISSING = "-"


def print_json(value: object) -> None:
    """One JSON document; indented, since somebody may read it and no program minds."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """A table on a terminal; elsewhere aligned text that awk and grep can take apart."""
    listed = [list(row) for row in rows]
    numeric = [_is_numeric(row[i] for row in listed) for i in range(len(columns))]
    texts = [[_text(cell) for cell in row] for row in listed]
    if sys.stdout.isatty():
        _print_rich(columns, texts, numeric)
    else:
        print(align([[column.upper().replace(" ", "_") for column in columns], *texts], numeric))


def heading(text: str, detail: str = "") -> None:
    """A line above a table, bold on a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console().print(Text.assemble((text, "bold"), "  " if detail else "", (detail, "dim")), soft_wrap=True)
    else:
        print(f"{text}  {detail}" if detail else text)


def align(rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """Columns of equal width, two spaces apart, no trailing blanks."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(numeric))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    )


def _text(cell: Cell) -> str:
    return MISSING if cell is None or cell == "" else str(cell)


def _is_numeric(cells: Iterable[Cell]) -> bool:
    present = [cell for cell in cells if cell is not None]
    return bool(present) and all(isinstance(cell, int) for cell in present)


def _print_rich(columns: Sequence[str], texts: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
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


def counted(number: int, noun: str) -> str:
    """`1 partition`, `2 partitions`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size_text(size: float) -> str:
    """A number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """The items in their order, so many at a time."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def note(message: str) -> None:
    """A remark for the person at the terminal, on standard error, so that output stays clean."""
    print(message, file=sys.stderr, flush=True)


class LongWork:
    """A progress bar on standard error for work that has taken longer than a second, and only on a terminal.

    `total` is in the unit of `advance`, None when nobody knows; with `shows_bytes` it is written as a size.
    """

    def __init__(
        self,
        description: str,
        total: int | None,
        *,
        shows_bytes: bool = False,
        wanted: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stream = stream or sys.stderr
        self._description = description
        self._total = total
        self._shows_bytes = shows_bytes
        self._clock = clock
        self._done = 0
        self._bar: tuple[Progress, TaskID] | None = None
        self._show_at = clock() + SHOW_PROGRESS_AFTER_S if wanted and self._stream.isatty() else None

    def __enter__(self) -> "LongWork":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    @property
    def shown(self) -> bool:
        """True once the bar is on the screen."""
        return self._bar is not None

    def advance(self, amount: int) -> None:
        """So much more is done."""
        self._done += amount
        if self._show_at is None:
            return
        if self._bar is None:
            if self._clock() < self._show_at:
                return
            self._bar = self._show()
        progress, task = self._bar
        progress.update(task, completed=self._done)

    def _show(self) -> "tuple[Progress, TaskID]":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        amount = (DownloadColumn(), TransferSpeedColumn()) if self._shows_bytes else (MofNCompleteColumn(),)
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *amount,
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        progress.start()
        return progress, progress.add_task(self._description, total=self._total)
