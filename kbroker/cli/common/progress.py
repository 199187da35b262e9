"""A progress bar on standard error."""

import sys
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SHOW_AFTER_S = 1.0


class ProgressBar:
    """A progress bar that appears after a second of work, and only on a terminal.

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
        self._show_at = clock() + SHOW_AFTER_S if enabled and self._stream.isatty() else None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    @property
    def is_shown(self) -> bool:
        return self._bar is not None

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
