"""Waits: requests that are sent again, and reports of what is waited for, so that no command is silent for long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

# Called with the reason of a wait that lasts longer than SILENT_FOR_S.
OnWait = Callable[[str], None]

SILENT_FOR_S = 1.5
RETRY_EVERY_S = 0.1


def ignore_wait(reason: str) -> None:
    """The OnWait of programs."""


class Retries:
    """The tries of one request, for at most `for_s` seconds."""

    def __init__(self, on_wait: OnWait, for_s: float) -> None:
        self._on_wait = on_wait
        self._started = monotonic()
        self.for_s = for_s
        self._is_reported = False

    def again(self, reason: object) -> bool:
        """Sleep before the next try. Returns False if the time is over. `reason`: what has failed."""
        waited_s = monotonic() - self._started
        if waited_s > self.for_s:
            return False
        if waited_s > SILENT_FOR_S and not self._is_reported:
            self._is_reported = True
            self._on_wait(str(reason))
        sleep(RETRY_EVERY_S)
        return True


@contextmanager
def reported_wait(on_wait: OnWait, reason: str) -> Iterator[None]:
    """Report the reason if the block takes longer than SILENT_FOR_S. It is called in another thread."""
    from threading import Timer

    timer = Timer(SILENT_FOR_S, on_wait, [reason])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
