"""Logs the operations that failed for lack of disk space, file descriptors or memory, at a bounded rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.log_health import NO_DESCRIPTORS

if TYPE_CHECKING:
    from kbroker.common import TopicPartition
    from kbroker.runtime.environment import Environment

event_log = EventLogger("kbroker.logs")

WINDOW_MS = 60_000
MAX_LINES_PER_WINDOW = 100


class ShortageReporter:
    """Logs each operation of each partition once per window.

    `on_out_of_descriptors` is called on the event loop when an operation lacked a file descriptor, `on_append_failed`
    with the reason when the operation was an append.
    """

    def __init__(self, environment: Environment) -> None:
        self.on_out_of_descriptors: Callable[[], None] = lambda: None
        self.on_append_failed: Callable[[str], None] = lambda reason: None
        self._environment = environment
        self._window_start_ms = 0
        self._reported: set[tuple[TopicPartition, str]] = set()
        self._suppressed = 0

    def report(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        """Report that an operation on a log has failed and will be retried. May be called in any thread."""
        try:
            self._environment.loop.call_soon_threadsafe(self._report, tp, operation, error)
        except RuntimeError:
            # The event loop is closed, since the broker has stopped.
            return

    def _report(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        if error.errno in NO_DESCRIPTORS:
            self.on_out_of_descriptors()
        if operation == "append":
            self.on_append_failed(error.strerror or str(error))
        now_ms = self._environment.clock.mono_ms()
        if now_ms - self._window_start_ms >= WINDOW_MS:
            self._reported.clear()
        if not self._reported:
            # A window starts with its first line.
            self._window_start_ms = now_ms
        if (tp, operation) in self._reported:
            return
        if len(self._reported) >= MAX_LINES_PER_WINDOW:
            self._suppressed += 1
            return
        self._reported.add((tp, operation))
        suppressed, self._suppressed = self._suppressed, 0
        event_log.warning(
            "log operation failed, will be retried",
            partition=tp,
            operation=operation,
            reason=error,
            others_not_reported=suppressed or None,
        )
