"""Being asked to end: SIGINT and SIGTERM while a command on Spark runs."""

import signal
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# timeout(1) and others send one to the process and one to its group.
SAME_SIGNAL_S = 0.5


class StopSignals:
    """While it is entered, `ask` is called with 1 for the first signal, 2 for the next, and so on."""

    def __init__(self, ask: Callable[[int], None]) -> None:
        self._ask = ask
        self._asked = 0
        self._last_s = float("-inf")
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self.take()
        return self

    def take(self) -> None:
        """Take the signals, again where somebody else has taken them meanwhile."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = monotonic()
        if now_s - self._last_s > SAME_SIGNAL_S:
            self._last_s = now_s
            self._asked += 1
            self._ask(self._asked)
