"""A follower as the leader of the partition knows it (Kafka: Replica, ReplicaState)."""

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
# Before any time of the monotonic clock: the follower was never caught up in this leader epoch.
NEVER_MS = -(1 << 62)


class FollowerState:
    """The claims of one follower in the current leader epoch. Times are monotonic, in milliseconds.

    `log_end_offset`: the fetch offset of its last Fetch; everything below it is in its log (and synced there, with
    flush.before.ack). `last_fetch_leader_end`: the leader's log end offset at that Fetch. `is_joining`: the follower is
    not in the ISR, but the high watermark waits for it, since it would otherwise never catch up with a busy partition.
    """

    __slots__ = (
        "broker_epoch", "broker_id", "is_joining", "last_caught_up_ms", "last_fetch_leader_end", "last_fetch_ms",
        "log_end_offset", "log_start_offset",
    )  # fmt: skip

    def __init__(self, broker_id: int, last_caught_up_ms: int = NEVER_MS) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_EPOCH
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_fetch_leader_end = UNKNOWN_OFFSET
        self.last_fetch_ms = NEVER_MS
        self.last_caught_up_ms = last_caught_up_ms
        self.is_joining = False

    def record_fetch(
        self, broker_epoch: int, fetch_offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """Record the positions of a Fetch.

        The last claim counts, even if it is lower than an earlier one: the follower may have lost its tail.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif fetch_offset >= self.last_fetch_leader_end >= 0:
            # It has everything that the leader had at the previous Fetch.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.broker_epoch = broker_epoch
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.last_fetch_leader_end = leader_end_offset
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Return whether the follower was at the leader's log end within replica.lag.time.max.ms."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms
