"""SIGINT and SIGTERM as stop requests, and interrupts that are not lost."""

import signal
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# timeout(1) and other programs send the same signal to the process and to its process group.
SAME_SIGNAL_S = 0.5


class StopSignals:
    """Context manager: calls `on_stop(1)` for the first signal, `on_stop(2)` for the second, and so on."""

    def __init__(self, on_stop: Callable[[int], None]) -> None:
        self._on_stop = on_stop
        self._count = 0
        self._last_s = float("-inf")
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers, again if a library has replaced them."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = monotonic()
        if now_s - self._last_s > SAME_SIGNAL_S:
            self._last_s = now_s
            self._count += 1
            self._on_stop(self._count)


class Interrupts:
    """Context manager for a command that waits in a loop: a signal raises KeyboardInterrupt, `check` raises it again.

    The first exception can be lost: it is raised wherever the main thread is, also in a finalizer, or in a library that
    ignores the errors of callbacks.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self._signals = signals
        self._is_interrupted = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        # Signals can be handled only in the main thread.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a signal."""
        if self._is_interrupted:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_interrupted = True
        raise KeyboardInterrupt
