"""Ends the session of a process whose event loop hangs.

kazoo's thread sends heartbeats by itself. Without this watchdog, a broker that hangs would keep its registration and
its leaderships forever.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

CHECKS_PER_TIMEOUT = 4


class LoopWatchdog:
    """A thread that expects a sign of life of the event loop in every `timeout_s` seconds, the session timeout.

    Without one, `hangs` is true, and this thread calls `on_hang` at each check until the loop runs again. The session
    then expires, unless a new connection is opened. Any thread may change `timeout_s`.
    """

    def __init__(self, loop: AbstractEventLoop, timeout_s: float, on_hang: Callable[[], None]) -> None:
        self._loop = loop
        self.timeout_s = timeout_s
        self._on_hang = on_hang
        self._last_beat_s = monotonic()
        self._stopped = threading.Event()

    @property
    def hangs(self) -> bool:
        return monotonic() - self._last_beat_s > self.timeout_s

    def start(self) -> None:
        self._last_beat_s = monotonic()
        threading.Thread(target=self._run, name="loop watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        self._last_beat_s = monotonic()

    def _run(self) -> None:
        checked_s = monotonic()
        while not self._stopped.wait(interval_s := self.timeout_s / CHECKS_PER_TIMEOUT):
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._beat)
            now_s, checked_before_s = monotonic(), checked_s
            checked_s = now_s
            if now_s - checked_before_s > 2 * interval_s:
                # The whole process was paused: the loop may still run in this check's interval.
                self._last_beat_s = max(self._last_beat_s, now_s - self.timeout_s + interval_s)
            elif self.hangs:
                self._on_hang()
