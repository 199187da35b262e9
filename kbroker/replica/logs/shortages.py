"""Shortages of a data directory: reports what failed for want of room, file descriptors or memory.

Each log and operation is reported once a minute at most, and all of them together in a bounded number of lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.runtime.event_log import EventLogger
from kbroker.storage.shortage import NO_FILES

if TYPE_CHECKING:
    from kbroker.common import TopicPartition
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.logs")

WINDOW_MS = 60_000
LINES_IN_ALL = 100


class Shortages:
    """`on_out_of_files` is called on the loop when an operation had no file descriptor."""

    def __init__(self, environment: Environment) -> None:
        self.on_out_of_files: Callable[[], None] = _ignore
        self._environment = environment
        # Of the first line in this window.
        self._since_ms = 0
        self._reported: set[tuple[TopicPartition, str]] = set()
        self._untold = 0

    def note(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        """An operation on a log failed and will be tried again. May be called in a thread."""
        try:
            self._environment.loop.call_soon_threadsafe(self._note, tp, operation, error)
        except RuntimeError:
            # The loop is closed: the broker has ended.
            return

    def _note(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        if error.errno in NO_FILES:
            self.on_out_of_files()
        now_ms = self._environment.clock.mono_ms()
        if now_ms - self._since_ms >= WINDOW_MS:
            self._reported.clear()
        if not self._reported:
            self._since_ms = now_ms
        if (tp, operation) in self._reported:
            return
        if len(self._reported) >= LINES_IN_ALL:
            self._untold += 1
            return
        self._reported.add((tp, operation))
        untold, self._untold = self._untold, 0
        log.warning(
            "log operation failed, will be retried",
            partition=tp,
            operation=operation,
            reason=error,
            others_not_reported=untold or None,
        )


def _ignore() -> None:
    pass
