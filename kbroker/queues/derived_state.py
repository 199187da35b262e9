"""State that is derived from the log of a partition: the interface of pure state machines.

The log is the only source of truth. A broker that becomes the leader rebuilds the state from the log, and then applies
its own appends. A snapshot only saves replaying the whole log. derived_state_manager.py loads the state and writes
snapshots, in the format of state_snapshot.py.

A leader's state covers its whole log, uncommitted records included, since each append depends on those before it. A
later leader may have a shorter log. It rebuilds the state from its own log, and never receives it from another broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kbroker.common import Buffer
from protocol.records.batch import BatchHeader


class DerivedState(Protocol):
    """All methods run on the event loop."""

    def wants(self, header: BatchHeader) -> bool:
        """Return whether a batch may change the state, so that its records must be decompressed for `replay`."""
        ...

    def replay(self, header: BatchHeader, body: Buffer, now_ms: int) -> None:
        """Apply a batch of the log, with its decompressed records. Yields after each slice.

        Also called with control batches. Raises MalformedError after it has applied the records before the damage.
        """
        ...

    def first_timestamp(self, now_ms: int) -> int | None:
        """Return the timestamp in ms at which a replay without a snapshot begins; None for the log start offset."""
        ...

    def to_snapshot(self) -> Iterator[Buffer]:
        """Return the parts of the encoded state as it is now. They are computed in a thread."""
        ...

    def load_snapshot(self, data: Buffer) -> None:
        """Load an encoded state into this state, which is empty. In turns. Raises ValueError."""
        ...
