"""The state of one partition in its fetcher (Kafka: PartitionFetchState)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.replica.fetcher.replica_fetch_session import PartitionKey
    from kbroker.replica.partition import Partition
    from protocol.fast.replica_fetch import ReplicaFetchPartition

# The first backoff of a partition or of a connection. It doubles up to replica.fetch.backoff.ms: most errors end as
# soon as both brokers have the same metadata, some milliseconds later.
FIRST_BACKOFF_MS = 20


def backoff_ms(failures: int, max_ms: int) -> int:
    """Return the backoff after a number of consecutive failures."""
    return min(max_ms, FIRST_BACKOFF_MS << min(failures - 1, 20))


class PartitionFetchState:
    """One partition that follows `leader_id` in `leader_epoch`. A change of either creates a new state.

    `requested`: the (leader epoch, fetch offset) that the leader's session has since the request `request_number`. A
    response to an earlier request, or one that arrives after either has changed, is late (KIP-320).
    `lag`: the number of committed records that the leader had and this replica did not, after the last response; -1
    before the first one.
    `is_paused`: the partition is not fetched, while it backs off, is truncated or waits for a sync.
    """

    __slots__ = (
        "failures", "is_paused", "key", "lag", "leader_epoch", "leader_id", "partition", "request_number",
        "requested", "timer",
    )  # fmt: skip

    def __init__(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        self.partition = partition
        self.key: PartitionKey = (partition.topic_id, partition.tp.partition)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.requested: tuple[int, int] | None = None
        self.request_number = 0
        self.is_paused = False
        self.failures = 0
        self.lag = -1
        # Ends the backoff.
        self.timer: TimerHandle | None = None

    def next_request(self, request_number: int, max_bytes: int) -> ReplicaFetchPartition:
        """Return the partition's row of the next request, and expect the response to it."""
        log = self.partition.log
        self.request_number = request_number
        self.requested = (self.leader_epoch, log.log_end_offset)
        return (
            self.key[1], self.leader_epoch, log.log_end_offset, log.epochs.latest, log.log_start_offset, max_bytes,
        )  # fmt: skip

    @property
    def is_late(self) -> bool:
        """Whether the leader epoch or the fetch offset has changed since the request."""
        return self.requested != (self.partition.leader_epoch, self.partition.log.log_end_offset)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
