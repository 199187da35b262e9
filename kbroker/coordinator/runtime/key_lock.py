"""The lock of one key of a coordinator partition, such as a group id: which operations run, and in which order."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kbroker.coordinator.runtime.operation import EXCLUSIVE_AFTER_SHARED, ORDERED, SHARED, LockMode
from kbroker.coordinator.runtime.write_event import WriteEvent
from kbroker.runtime.turns import yield_if_due


@dataclass(slots=True, eq=False)
class KeyLock:
    """It exists only while a write of its key is in flight, an operation runs, or one waits.

    `is_held`: by an EXCLUSIVE or ORDERED operation that runs, or an EXCLUSIVE write in flight. `shared` and `ordered`:
    how many writes of these modes are in flight. `last_write`: the last of the ORDERED ones, which has replayed what is
    not committed yet.
    """

    is_held: bool = False
    shared: int = 0
    ordered: int = 0
    last_write: WriteEvent | None = None
    _is_releasing: bool = field(init=False, default=False)
    _waiting: deque[tuple[LockMode, Callable[[], None]]] = field(init=False, default_factory=deque)

    def must_wait(self, mode: LockMode) -> bool:
        """Return whether an operation has to wait for others."""
        return bool(self._waiting) or not self._admits(mode)

    def wait(self, operation: Callable[[], None], mode: LockMode) -> None:
        """Call an operation that has to wait after those that it waits for."""
        self._waiting.append((mode, operation))

    def release(self, mode: LockMode) -> bool:
        """Run operations that waited, as far as possible. Returns whether the lock is not needed any more.

        An operation without records has ended, or the records of a write are committed or have failed. An ORDERED
        operation with records ends like an EXCLUSIVE one, before its write does.
        """
        if mode is SHARED:
            self.shared -= 1
        elif mode is ORDERED:
            self.ordered -= 1
        else:
            self.is_held = False
        if self._is_releasing:
            # One of the operations below has released it again. Thousands may wait, so they do not call one another.
            return False
        self._is_releasing = True
        try:
            while self._waiting and self._admits(self._waiting[0][0]):
                self._waiting.popleft()[1]()
                if mode is not SHARED:
                    # An exclusive operation ends in a turn of its own. A shared one may end in the turn of any request.
                    yield_if_due()
        finally:
            self._is_releasing = False
        return not (self.is_held or self.shared or self.ordered or self._waiting)

    def _admits(self, mode: LockMode) -> bool:
        if self.is_held:
            return False
        if mode is SHARED or mode is ORDERED:
            return True
        return not self.ordered and not (mode is EXCLUSIVE_AFTER_SHARED and self.shared)
