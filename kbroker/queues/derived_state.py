"""State that is derived from the log of a partition: the interface of pure state machines.

The log is the truth. A broker that becomes the leader rebuilds the state from the log, and then applies what it
appends. A snapshot is only a short cut. state_loader.py loads the state, state_snapshot.py has the format of snapshots.

The state of a leader covers its whole log, not only what is committed: what a leader appends must be known to the next
append. A successor may have a shorter log. It rebuilds its own state from that, and never takes over another's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from kbroker.common import Buffer
from protocol.records.batch import BatchHeader


class DerivedState(Protocol):
    """All methods run on the event loop, except the function that `to_snapshot` returns and `load_snapshot`."""

    def wants(self, header: BatchHeader) -> bool:
        """Return whether a batch changes the state, so that its records must be decompressed for `replay`."""
        ...

    def replay(self, header: BatchHeader, body: Buffer, now_ms: int) -> Generator[None, None, None]:
        """Apply a batch of the log, with its decompressed records. Yields after each slice.

        Control batches are passed, too. Raises MalformedError, and then has applied the records before the damage.
        """
        ...

    def first_timestamp(self, now_ms: int) -> int | None:
        """Return the timestamp in ms from which on records count, if there is no snapshot; None for the whole log."""
        ...

    def to_snapshot(self) -> Callable[[], bytes]:
        """Copy the state, and return a function that encodes the copy in a thread."""
        ...

    def load_snapshot(self, data: bytes) -> None:
        """Load an encoded copy into this state, which is empty. Raises ValueError."""
        ...
