"""Selects the replica from which a consumer reads: one in its rack (KIP-392, Kafka's RackAwareReplicaSelector)."""

from collections.abc import Mapping

from kbroker.metadata.image import BrokerRegistration
from kbroker.replica.partition_state import PartitionState

RACK_AWARE = ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector")
NO_REPLICA = -1


def select_read_replica(
    state: PartitionState, rack: str, fetch_offset: int, brokers: Mapping[int, BrokerRegistration]
) -> int:
    """Return the follower from which a consumer in a rack should read; -1 for the leader.

    Candidates are live followers in the ISR that have the fetch offset. The leader is preferred if it is in the rack,
    then the follower with the highest log end offset; of several, the one that was caught up last.
    """
    leader = brokers.get(state.local_id)
    if leader is not None and leader.rack == rack:
        return NO_REPLICA
    candidates = [
        (follower.log_end_offset, follower.last_caught_up_ms, -id)
        for id, follower in state.followers.items()
        if id in state.isr
        and id in brokers
        and brokers[id].rack == rack
        and follower.log_end_offset >= fetch_offset
        and 0 <= follower.log_start_offset <= fetch_offset
    ]
    return -max(candidates)[2] if candidates else NO_REPLICA
