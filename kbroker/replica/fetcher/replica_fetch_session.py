"""The follower's side of a fetch session (KIP-227): which partitions the next Fetch request must name."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.fast.replica_fetch import ReplicaFetchPartition

INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
NO_SESSION = 0

# The id of the topic, and the index of the partition.
PartitionKey = tuple[bytes, int]


class ReplicaFetchSession:
    """The session of one fetcher at its leader. `id`: NO_SESSION until the leader has created one."""

    __slots__ = ("_forgotten", "_members", "epoch", "id")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        # The partitions of the session at the leader, once it has the requests so far.
        self._members: set[PartitionKey] = set()
        self._forgotten: dict[PartitionKey, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that the leader could send without further partitions."""
        return not self._members

    def forget(self, key: PartitionKey) -> None:
        """Remove a partition from the session with the next request."""
        if key in self._members:
            self._members.discard(key)
            self._forgotten[key] = None

    def add(
        self, partitions: Iterable[tuple[PartitionKey, ReplicaFetchPartition]]
    ) -> tuple[list[tuple[bytes, list[ReplicaFetchPartition]]], list[tuple[bytes, list[int]]]]:
        """Add partitions, or change them. Returns the topics and the forgotten topics of the next request."""
        topics: dict[bytes, list[ReplicaFetchPartition]] = {}
        for key, row in partitions:
            self._members.add(key)
            # A leader applies the forgotten partitions last, so it would remove one that is also in the topics.
            self._forgotten.pop(key, None)
            topics.setdefault(key[0], []).append(row)
        forgotten: dict[bytes, list[int]] = {}
        if self._forgotten:
            for topic_id, index in self._forgotten:
                forgotten.setdefault(topic_id, []).append(index)
            self._forgotten.clear()
        return list(topics.items()), list(forgotten.items())

    def begin_request(self) -> tuple[int, int]:
        """Return the session id and the epoch of the next request."""
        epoch = self.epoch
        self.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return self.id, epoch

    def on_response(self, session_id: int) -> bool:
        """Record the session of a response without an error. Returns False if the leader keeps no session.

        A leader without memory for the session, or one whose session became empty, responds without an id. The next
        request must then name all partitions.
        """
        self.id = session_id
        return session_id != NO_SESSION

    def reset(self, *, keep_id: bool) -> None:
        """Create another session with the next request. With `keep_id` that request closes the current one."""
        if not keep_id:
            self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._members.clear()
        self._forgotten.clear()
