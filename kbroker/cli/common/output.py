"""What commands print: tables, JSON with --json, notes, progress bars; the pager, --watch, and confirmations."""

import inspect
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from kbroker.cli.common.errors import CliError, print_error

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


Cell = str | int | None

MISSING = "-"


def print_json(value: object) -> None:
    """Print one indented JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_note(message: str) -> None:
    """Print a remark on standard error, so that standard output contains only results."""
    print(message, file=sys.stderr, flush=True)


RED, GREEN, YELLOW, BOLD, DIM = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[1m", "\x1b[2m"


def colored(text: str, color: str) -> str:
    """Return text in a color for standard output; unchanged without a terminal, or with NO_COLOR."""
    return f"{color}{text}\x1b[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def print_rows(as_json: bool, document: object, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a JSON document, or else the same as a table."""
    if as_json:
        print_json(document)
    else:
        print_table(columns, rows)


def print_outcomes(outcomes: Iterable[tuple[str, CliError | str | None]]) -> None:
    """Print a line for each: its text, or its error. Exits with status 1 if there is an error."""
    failed = False
    for text, error in outcomes:
        if error is None:
            print(text)
        else:
            print_error(error)
            failed = True
    if failed:
        raise typer.Exit(1)


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
    texts = [[MISSING if cell is None or cell == "" else str(cell) for cell in row] for row in cells]
    numeric = []
    for number in range(len(columns)):
        present = [row[number] for row in cells if row[number] is not None]
        numeric.append(bool(present) and all(isinstance(cell, int) for cell in present))
    if not sys.stdout.isatty():
        print(align([[column.upper().replace(" ", "_") for column in columns], *texts], numeric))
        return
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


NoPager = Annotated[bool, typer.Option("--no-pager", help="Do not page long output in a terminal.")]
Watch = Annotated[
    float | None,
    # HelpCommand inserts the default for --watch without a number.
    typer.Option("--watch", metavar="[SECONDS]", min=0.1, help="Show it again every 2 or SECONDS s, until Ctrl-C."),
]

DEFAULT_PAGER = "less"
LESS = "FRX"  # exit if the text fits on one screen, pass colors through, leave the text on the screen


def paginated(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that its output is paged, and add the option --no-pager to it."""

    def paginated_command(*args: Any, no_pager: bool = False, **options: Any) -> None:
        with pager(enabled=not no_pager):
            command(*args, **options)

    return _with_option(command, paginated_command, "no_pager", False, NoPager)


def watchable(command: Callable[..., None]) -> Callable[..., None]:
    """Like `paginated` for a command with --json that only reads, and add the option --watch to it."""

    def watchable_command(*args: Any, watch: float | None = None, **options: Any) -> None:
        if watch is None:
            paginated(command)(*args, **options)
        else:
            del options["no_pager"]
            _watch(lambda: command(*args, **options), watch, options["as_json"])

    return _with_option(paginated(command), watchable_command, "watch", None, Watch)


def _with_option(
    command: Callable[..., None], changed: Callable[..., None], name: str, default: object, annotation: Any
) -> Callable[..., None]:
    """Return `changed` with the signature of `command` and one more option."""
    signature = inspect.signature(command)
    option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    wraps(command)(changed)
    changed.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    changed.__annotations__ = {**command.__annotations__, name: annotation}
    return changed


CLEAR_SCREEN = "\x1b[H\x1b[J"


def _watch(show: Callable[[], None], every_s: float, as_json: bool) -> None:
    """Show it again and again: a screen on a terminal; elsewhere a block with a blank line, or a line of JSON.

    An error ends only the first time, since brokers that are watched may be away for a while.
    """
    out, err = sys.stdout, sys.stderr
    separator = ""
    while True:
        sys.stdout = shown = _TerminalBuffer() if out.isatty() else io.StringIO()
        sys.stderr = notes = _Notes(err)
        try:
            show()
        except typer.Exit:
            # The status of what is shown.
            pass
        except CliError as error:
            if error.status != 1 or not separator:
                raise
            print_error(error)
        finally:
            sys.stdout, sys.stderr = out, err
        text = shown.getvalue()
        if out.isatty():
            text, separator = f"{CLEAR_SCREEN}{text}{notes.getvalue()}", CLEAR_SCREEN
        elif as_json:
            text, separator = text and json.dumps(json.loads(text), ensure_ascii=False) + "\n", "\n"
        else:
            text, separator = separator + text, "\n"
        print(text, end="", flush=True)
        sleep(every_s)


class _Notes(io.StringIO):
    """Prints what is written at once, and keeps it to repeat it after the screen is cleared."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        self._stream.write(text)
        self._stream.flush()
        return super().write(text)


class _TerminalBuffer(io.StringIO):
    """Buffered output that claims to be a terminal, so that tables and colors are printed."""

    def isatty(self) -> bool:
        return True


@contextmanager
def pager(*, enabled: bool = True) -> Iterator[None]:
    """Send the output of the block to a pager if it is longer than the terminal. No effect without a terminal."""
    command = shlex.split(os.environ.get("PAGER", DEFAULT_PAGER)) if enabled and sys.stdout.isatty() else []
    if not command or command == ["cat"] or shutil.which(command[0]) is None:
        yield
        return
    terminal = sys.stdout
    sys.stdout = buffer = _TerminalBuffer()
    try:
        yield
    finally:
        sys.stdout = terminal
        text = buffer.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines:
            terminal.write(text)
        else:
            # check=False: leaving the pager with q or Ctrl-C is not a failure of the command.
            subprocess.run(command, input=text.encode(errors="replace"), env={"LESS": LESS, **os.environ}, check=False)


SHOW_AFTER_S = 1.0


class ProgressBar:
    """A progress bar that appears after a second of work, and only on a terminal: not in the threads of the console.

    `total` is in the unit of `advance`, None if it is unknown; `shows_bytes` prints amounts as sizes.
    """

    def __init__(
        self,
        description: str,
        total: int | None,
        *,
        shows_bytes: bool = False,
        enabled: bool = True,
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
        enabled = enabled and threading.current_thread() is threading.main_thread()
        self._show_at = clock() + SHOW_AFTER_S if enabled and self._stream.isatty() else None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    @property
    def may_be_shown(self) -> bool:
        """Whether the amount of work done is of use: not outside a terminal."""
        return self._show_at is not None

    def advance(self, amount: int) -> None:
        """Add to the amount of work done."""
        self._done += amount
        if self._show_at is None:
            return
        if self._bar is None:
            if self._clock() < self._show_at:
                return
            self._bar = self._show()
        progress, task = self._bar
        progress.update(task, completed=self._done)

    def advance_to(self, done: int) -> None:
        """Set the amount of work done."""
        self.advance(done - self._done)

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


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation when run in a terminal; raises typer.Abort when it is refused. Scripts are not asked."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)
