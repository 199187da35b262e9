"""The lock of one key of a coordinator partition, such as a group id: which operations run, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.coordinator.runtime.operation import EXCLUSIVE_AFTER_SHARED, ORDERED, SHARED, LockMode
from kbroker.runtime.turns import yield_if_due

if TYPE_CHECKING:
    from kbroker.coordinator.runtime.write_event import WriteEvent


class KeyLock:
    """It exists only while a write of its key is in flight, an operation runs, or one waits.

    It is held by an EXCLUSIVE or ORDERED operation that runs, and by an EXCLUSIVE write in flight. SHARED and ORDERED
    writes in flight are counted. `last_write`: the last of the ORDERED ones; what it has replayed is not committed yet.
    """

    __slots__ = ("_is_held", "_is_releasing", "_ordered", "_shared", "_waiting", "last_write")

    def __init__(self) -> None:
        self._is_held = False
        self._shared = 0
        self._ordered = 0
        self._is_releasing = False
        self._waiting: deque[tuple[LockMode, Callable[[], None]]] = deque()
        self.last_write: WriteEvent | None = None

    @property
    def is_idle(self) -> bool:
        return not (self._is_held or self._shared or self._ordered or self._waiting or self._is_releasing)

    def must_wait(self, mode: LockMode) -> bool:
        """Return whether an operation has to wait for others."""
        return bool(self._waiting) or not self._admits(mode)

    def wait(self, operation: Callable[[], None], mode: LockMode) -> None:
        """Call an operation that has to wait after those that it waits for."""
        self._waiting.append((mode, operation))

    def acquire(self, mode: LockMode) -> None:
        """Hold the lock for an operation that runs next, or count a SHARED or ORDERED write that is queued."""
        if mode is SHARED:
            self._shared += 1
        elif mode is ORDERED:
            self._ordered += 1
        else:
            self._is_held = True

    def release(self, mode: LockMode) -> None:
        """Undo `acquire`: there are no records, or they are committed or have failed. Runs operations that waited."""
        if mode is SHARED:
            self._shared -= 1
        elif mode is ORDERED:
            self._ordered -= 1
        else:
            self._is_held = False
        if self._is_releasing:
            # One of the operations below has released it again. Thousands may wait, so they do not call one another.
            return
        self._is_releasing = True
        try:
            while self._waiting and self._admits(self._waiting[0][0]):
                self._waiting.popleft()[1]()
                if mode is not SHARED:
                    # An exclusive operation ends in a turn of its own. A shared one may end in the turn of any request.
                    yield_if_due()
        finally:
            self._is_releasing = False

    def _admits(self, mode: LockMode) -> bool:
        if self._is_held:
            return False
        if mode is SHARED or mode is ORDERED:
            return True
        return not self._ordered and not (mode is EXCLUSIVE_AFTER_SHARED and self._shared)
