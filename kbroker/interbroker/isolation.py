"""Decides whether this broker is cut off from all others, from what a round of requests to them has shown.

It gives up its roles when all others have been silent for longer than a session lasts, in one of three cases. The first
is that the coordination service is silent, too: the broker has probably been replaced. The second is that it is the
controller: nobody else can change the metadata. The third is that the controller is one of the silent brokers, and this
one leads what others could lead: nobody can follow it. Earlier, it is in doubt, see `others_are_silent`.

Brokers that have died must not be mistaken for ones that cannot be reached: a controller that outlives all others stays
the controller. A dead broker is fenced when its session has expired, or its host refuses connections. So only unfenced
brokers that are silent count, and only for longer than a session lasts. With less than two of them, this broker is as
likely to be the reachable one as the other is, unless the other is the controller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.metadata.image import PartitionRegistration

# Silent brokers that may have a majority without this one.
MIN_SILENT = 2
# How long all others must be silent, in session timeouts. ZooKeeper may expire a session half its timeout late.
SESSION_TIMEOUTS = 1.5
# Rounds that are further apart, in milliseconds, do not show what happened between them: this process was stopped.
MAX_GAP_MS = 10_000


class Contact(Enum):
    """What a request to another broker has shown. REFUSED: its host responds, but no broker runs there."""

    RESPONSE = auto()
    REFUSED = auto()
    SILENCE = auto()


def others_are_silent(contacts: Collection[Contact]) -> bool:
    """Return whether a round of requests, to all other brokers or a few, has found silence and no response.

    A broker that the coordination service does not reach either may have been replaced then: its leaderships are in
    doubt from the first such round on.
    """
    return Contact.SILENCE in contacts and Contact.RESPONSE not in contacts


def must_ask_all(*, is_connected: bool, is_controller: bool, are_others_silent: bool) -> bool:
    """Return whether a broker asks all others, because their silence would show that it is isolated.

    `is_connected`: whether the coordination service responds. `are_others_silent`: the last round's result.
    """
    return not is_connected or is_controller or are_others_silent


def min_silent_brokers(*, is_connected: bool, is_controller: bool, controller: Contact | None) -> int | None:
    """Return how many brokers must be silent for this one to be isolated; None if it is not, whoever is silent.

    `controller`: what the request to the controller has shown, None if there is none.
    """
    if not is_connected or is_controller:
        return MIN_SILENT
    return 1 if controller is Contact.SILENCE else None


def can_be_replaced(broker: int, partitions: Iterable[PartitionRegistration]) -> bool:
    """Return whether a broker leads a partition that an in-sync replica could lead instead.

    A broker that only the coordination service reaches keeps what nobody else can lead: it would get it back.
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
        """Forget the rounds: the brokers were not asked for a time."""
        self._since_ms = None

    def is_isolated(self, session_timeout_ms: int) -> bool:
        """Return whether, at the last round, all others have been silent for longer than a session lasts."""
        return self._since_ms is not None and self._last_ms - self._since_ms > SESSION_TIMEOUTS * session_timeout_ms
