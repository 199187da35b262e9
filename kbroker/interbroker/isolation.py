"""Decides whether this broker is cut off from all others, based on rounds of requests to them.

A broker gives up its roles when all others have been silent for longer than a session lasts, in one of three cases:

- The coordination service is silent, too: the broker has probably been replaced.
- It is the controller: no other broker can change the metadata.
- The controller is one of the silent brokers, and this one leads partitions that others could lead: none can follow it.

Its leaderships are in doubt even earlier, see `others_are_silent`.

Dead brokers must not be mistaken for unreachable ones: a controller that outlives all others stays the controller. A
dead broker is fenced when its session has expired, or its host refuses connections. So only silent brokers that are
unfenced count, and only if they are silent for longer than a session lasts. If there is only one of them, either side
may be the one that is cut off, so it counts only if it is the controller.
"""

from collections.abc import Collection, Iterable
from enum import Enum, auto

from kbroker.metadata.image import PartitionRegistration

# The fewest silent brokers that could form a majority without this one.
MIN_SILENT = 2
# How long all others must be silent, in session timeouts. ZooKeeper may expire a session half its timeout late.
SESSION_TIMEOUTS = 1.5
# Milliseconds. If more time passes between two rounds, this process was stopped, and that time does not count.
MAX_GAP_MS = 10_000


class Contact(Enum):
    """The result of a request to another broker. REFUSED: its host responds, but no broker runs there."""

    RESPONSE = auto()
    REFUSED = auto()
    SILENCE = auto()


def others_are_silent(contacts: Collection[Contact]) -> bool:
    """Return whether no broker has responded to a round of requests, and at least one was silent.

    If the coordination service does not respond either, this broker may have been replaced: its leaderships are in
    doubt from the first such round on.
    """
    return Contact.SILENCE in contacts and Contact.RESPONSE not in contacts


def must_ask_all(*, is_connected: bool, is_controller: bool, are_others_silent: bool) -> bool:
    """Return whether a broker asks all others, because their silence would show that it is isolated.

    `is_connected`: whether the coordination service responds. `are_others_silent`: the last round's result.
    """
    return not is_connected or is_controller or are_others_silent


def min_silent_brokers(*, is_connected: bool, is_controller: bool, controller: Contact | None) -> int | None:
    """Return how many brokers must be silent for this one to be isolated; None if it is not isolated in any case.

    `controller`: the contact with the controller, None if there is none.
    """
    if not is_connected or is_controller:
        return MIN_SILENT
    return 1 if controller is Contact.SILENCE else None


def can_be_replaced(broker: int, partitions: Iterable[PartitionRegistration]) -> bool:
    """Return whether a broker leads a partition that another in-sync replica could lead instead.

    An isolated broker keeps the other partitions: the controller would elect it again.
    """
    return any(partition.leader == broker and len(partition.isr) > 1 for partition in partitions)


class Isolation:
    """Measures how long all other brokers have been silent. Times are monotonic, in milliseconds."""

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._last_ms = 0

    def observe(self, contacts: Collection[Contact], begin_ms: int, now_ms: int, min_silent: int = MIN_SILENT) -> None:
        """Record a round of requests, one to each unfenced broker, from `begin_ms` to `now_ms`."""
        silent = sum(contact is Contact.SILENCE for contact in contacts)
        if Contact.RESPONSE in contacts or silent < min_silent:
            self._since_ms = None
        elif self._since_ms is None or now_ms - self._last_ms > MAX_GAP_MS:
            self._since_ms = max(begin_ms, now_ms - MAX_GAP_MS)
        self._last_ms = now_ms

    def reset(self) -> None:
        """Discard all rounds, because the brokers were not asked for some time."""
        self._since_ms = None

    def is_isolated(self, session_timeout_ms: int) -> bool:
        """Return whether, at the last round, all others have been silent for longer than a session lasts."""
        return self._since_ms is not None and self._last_ms - self._since_ms > SESSION_TIMEOUTS * session_timeout_ms
