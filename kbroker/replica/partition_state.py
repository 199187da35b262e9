"""The in-sync replicas of a partition and its high watermark, as decisions without I/O.

The high watermark is exclusive: everything below it is on every in-sync replica. In a cluster it follows from the
leader's end offset and the fetch positions of the followers; with a single replica it is the leader's end offset. Under
flush.before.ack the flushed offset is used instead of the end offset, on the leader and on followers.
"""


class PartitionState:
    """The replicas' positions as the leader knows them. Offsets are exclusive ends."""

    __slots__ = ("followers", "high_watermark", "isr", "leader_epoch", "local_id")

    def __init__(self, local_id: int, leader_epoch: int, isr: list[int], high_watermark: int = 0) -> None:
        self.local_id = local_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.high_watermark = high_watermark
        # Positions of the other in-sync replicas: -1 until a replica has fetched, so the high watermark cannot advance.
        self.followers: dict[int, int] = {replica: -1 for replica in isr if replica != local_id}

    def advance_high_watermark(self, leader_position: int) -> bool:
        """Advance the high watermark to the lowest position of all in-sync replicas. Returns whether it advanced."""
        committed = leader_position
        if self.followers:
            committed = min(committed, *self.followers.values())
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def update_follower(self, replica_id: int, position: int) -> None:
        """Record that a follower has everything below `position`."""
        if replica_id in self.followers:
            self.followers[replica_id] = max(position, self.followers[replica_id])

    def is_under_min_isr(self, min_insync_replicas: int) -> bool:
        """Return whether acks=all must be refused (min.insync.replicas)."""
        return len(self.isr) < min_insync_replicas

    def update_leader_and_isr(self, leader_epoch: int, isr: list[int]) -> None:
        """Apply a leader epoch and an ISR. The positions of replicas that stay in the ISR are kept."""
        positions = self.followers
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.followers = {replica: positions.get(replica, -1) for replica in isr if replica != self.local_id}
