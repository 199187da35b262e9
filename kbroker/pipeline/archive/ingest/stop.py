"""Stops a run from a signal handler or another thread."""

import threading


class RunStopped(Exception):
    """The run was asked to stop. Its current work is abandoned."""


class StopEvent:
    """Asks a run to stop: after the current batch when set once, immediately when set twice."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()

    def set(self) -> None:
        self.count += 1
        self._event.set()

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`; raises RunStopped as soon as the event is set."""
        if self._event.wait(seconds):
            raise RunStopped
