"""Reads and writes the state of share partitions, with any broker's share coordinator (KIP-932: Persister).

The requests of one iteration of the event loop share a request to each broker, if they are of one group and one kind.
"""

from __future__ import annotations

from kbroker.coordinator.share.share_partition_state import PersistedState, SharePartitionKey, StateSummary, StateWrite


class ShareStatePersister:
    """Methods return when the coordinator has committed the change. Requests that may succeed later are repeated.

    They raise KafkaError: FENCED_LEADER_EPOCH if a newer leader has read the state, FENCED_STATE_EPOCH if the state was
    initialized again, UNKNOWN_TOPIC_OR_PARTITION if the topic is deleted, or the reason why the coordinator cannot be
    reached in time. After COORDINATOR_NOT_AVAILABLE, NETWORK_EXCEPTION and REQUEST_TIMED_OUT the outcome is unknown.
    """

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Set the start offset and discard the ranges, in a new state epoch."""
        raise NotImplementedError

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        """Return the state for a new leader. Leaders of lower epochs can no longer write."""
        raise NotImplementedError

    async def write(self, key: SharePartitionKey, write: StateWrite) -> None:
        """Change ranges, and the start offset. May be repeated; ranges that do not overlap may be written at once."""
        raise NotImplementedError

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete the state, if there is any."""
        raise NotImplementedError

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> StateSummary:
        """Return the start offset and how many records are completed."""
        raise NotImplementedError
