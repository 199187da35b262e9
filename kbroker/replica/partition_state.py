"""The pure part of a partition's leadership: who is in sync, and how far is committed.

High watermark (HW): exclusive; everything below it is on every in-sync replica. In a cluster the leader's own claim
and its followers' fetch positions decide; with a single replica the leader's claim alone does. Under
`flush.before.ack` a claim is the flushed offset instead of the log end offset, on the leader as on followers.
"""


class PartitionState:
    """Replica positions of one partition as its leader sees them. Offsets are exclusive ends."""

    __slots__ = ("followers", "high_watermark", "isr", "leader_epoch", "local_id")

    def __init__(self, local_id: int, leader_epoch: int, isr: list[int], high_watermark: int = 0) -> None:
        self.local_id = local_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.high_watermark = high_watermark
        # Positions of the other in-sync replicas; a replica that has not fetched yet holds the mark back.
        self.followers: dict[int, int] = {replica: -1 for replica in isr if replica != local_id}

    def advance(self, leader_claim: int) -> bool:
        """Move the high watermark to what every in-sync replica has; True when it moved. It never goes back."""
        committed = leader_claim
        for position in self.followers.values():
            if position < committed:
                committed = position
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def follower_at(self, replica_id: int, position: int) -> None:
        """A follower's fetch claims everything below `position`."""
        if replica_id in self.followers:
            self.followers[replica_id] = max(position, self.followers[replica_id])

    def enough_in_sync(self, min_insync_replicas: int) -> bool:
        """Whether acks=all may be accepted (min.insync.replicas)."""
        return len(self.isr) >= min_insync_replicas

    def become_leader(self, leader_epoch: int, isr: list[int]) -> None:
        """A newer leader epoch or ISR takes effect; positions of replicas that stay are kept."""
        known = self.followers
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.followers = {replica: known.get(replica, -1) for replica in isr if replica != self.local_id}
