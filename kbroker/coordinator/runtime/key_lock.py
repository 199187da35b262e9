"""Who may go on with a group while something of it is being written.

Decisions see committed state only. So while a record that changes the group is on its way, everything else
of that group waits, in order; offset commits pipeline with one another, and what has to see all of them
waits for them.
"""

from collections import deque
from collections.abc import Callable


class KeyLock:
    """One group's gate; it exists while something is under way."""

    __slots__ = ("_exclusive", "_shared", "_waiting")

    def __init__(self) -> None:
        self._exclusive = False
        self._shared = 0
        # What waits: whether it has to be alone, and what it does.
        self._waiting: deque[tuple[bool, Callable[[], None]]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self._exclusive or self._shared or self._waiting)

    def enter(self, operation: Callable[[], None], *, alone: bool = False) -> None:
        """Run an operation now or in its turn. `alone`: after all commits that are under way."""
        if self._waiting or not self._is_open(alone):
            self._waiting.append((alone, operation))
        else:
            operation()

    def hold(self) -> None:
        """Nothing enters until `release`."""
        self._exclusive = True

    def release(self) -> None:
        self._exclusive = False
        self._admit()

    def share(self) -> None:
        """A commit is under way."""
        self._shared += 1

    def unshare(self) -> None:
        self._shared -= 1
        self._admit()

    def _is_open(self, alone: bool) -> bool:
        return not self._exclusive and not (alone and self._shared)

    def _admit(self) -> None:
        while self._waiting and self._is_open(self._waiting[0][0]):
            self._waiting.popleft()[1]()
