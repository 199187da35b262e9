"""The order of operations on one key while records of it are uncommitted (see LockMode)."""

from collections import deque
from collections.abc import Callable

from kbroker.coordinator.runtime.operation import EXCLUSIVE_AFTER_SHARED, SHARED, LockMode


class KeyLock:
    """The lock of one key. It exists only while a write is in flight or an operation waits."""

    __slots__ = ("_exclusive", "_shared", "_waiting")

    def __init__(self) -> None:
        self._exclusive = False
        self._shared = 0
        self._waiting: deque[tuple[LockMode, Callable[[], None]]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self._exclusive or self._shared or self._waiting)

    def must_wait(self, mode: LockMode) -> bool:
        """Return whether an operation has to wait for others."""
        return bool(self._waiting) or not self._admits(mode)

    def wait(self, operation: Callable[[], None], mode: LockMode) -> None:
        """Call an operation that has to wait after those that it waits for."""
        self._waiting.append((mode, operation))

    def acquire(self, mode: LockMode) -> None:
        """Acquire the lock for an operation that has run and whose records are in flight."""
        if mode is SHARED:
            self._shared += 1
        else:
            self._exclusive = True

    def release(self, mode: LockMode) -> None:
        """Release the lock, because the records are committed or have failed. Runs operations that waited."""
        if mode is SHARED:
            self._shared -= 1
        else:
            self._exclusive = False
        while self._waiting and self._admits(self._waiting[0][0]):
            self._waiting.popleft()[1]()

    def _admits(self, mode: LockMode) -> bool:
        return not self._exclusive and not (mode is EXCLUSIVE_AFTER_SHARED and self._shared)
