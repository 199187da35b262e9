"""The interface through which kbroker/queues/ adds features to partitions."""

from __future__ import annotations

from typing import Any, Protocol


class PartitionExtensions(Protocol):
    """Implemented by kbroker/queues/."""

    def configure(self, partition: Any) -> None:
        """Set the append extension and the read filter of a `Partition`, as its topic's configs and its role require.

        Called when the partition is added, before it has a role; after each change of its topic's configs; when it
        begins a leader epoch, before any append; when it no longer leads; and when it was closed.
        """
        ...
