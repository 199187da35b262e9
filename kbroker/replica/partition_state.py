"""The replicas of a partition as its leader knows them, and the high watermark, as decisions without I/O.

The high watermark is exclusive: every replica of the *maximal ISR* has everything below it. The maximal ISR (KIP-497)
is the ISR that the controller has stored, together with the replicas that the leader has proposed to add. So whatever
the controller decides, and whether or not the leader learns it, each possible next leader has all committed records.
For the same reason:

- Only what followers have claimed in the current leader epoch counts: what they had before may have been truncated.
- The high watermark does not advance while the ISR is smaller than the effective min.insync.replicas (KIP-966), which
  is at most the number of replicas (KAFKA-15583).
- A replica joins the ISR only if it has everything up to the high watermark, and up to the start of the leader epoch:
  the new leader's high watermark may be lower than the former one's. With fewer than the effective min.insync.replicas
  in the ISR, it must have the whole log (KAFKA-19996).

With a single replica the high watermark is the leader's log end offset. Under flush.before.ack the synced offset is
used instead of the end offset, on the leader and on followers.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kbroker.metadata.image import BrokerRegistration

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
# Before any time of the monotonic clock: the follower was never caught up in this leader epoch.
NEVER_MS = -(1 << 62)
# In a list of throttled replicas.
_ALL_REPLICAS = "*"


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


# An own empty dict takes 64 bytes.
_NO_FOLLOWERS: Mapping[int, FollowerState] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class IsrProposal:
    """A change of the ISR that was proposed to the controller, and whose outcome is unknown. Compared by identity."""

    former_isr: Sequence[int]
    isr: list[int]
    leader_epoch: int
    partition_epoch: int


class PartitionState:
    """`isr`: as the controller has stored it. `proposal`: the change in flight, at most one. Offsets are exclusive.

    `followers` has the other replicas; it is empty for a partition with one replica, and on a follower.
    `leader_end_offset`: the log end offset after the last append, if there are followers. `is_under_min_isr`: acks=all
    must be refused, and the high watermark must not advance.
    """

    __slots__ = (
        "_counted", "_lag_max_messages", "epoch_start_offset", "followers", "high_watermark",
        "is_under_min_isr", "isr", "leader_end_offset", "leader_epoch", "local_id", "min_insync_replicas",
        "partition_epoch", "proposal", "replicas",
    )  # fmt: skip

    def __init__(
        self,
        local_id: int,
        leader_epoch: int,
        isr: Sequence[int],
        high_watermark: int = 0,
        *,
        replicas: Sequence[int] = (),
        partition_epoch: int = -1,
        min_insync_replicas: int = 1,
    ) -> None:
        self.local_id = local_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.high_watermark = high_watermark
        self.epoch_start_offset = 0
        self.leader_end_offset = 0
        self.followers: Mapping[int, FollowerState] = _NO_FOLLOWERS
        # The followers whose claims hold the high watermark back.
        self._counted: tuple[FollowerState, ...] = ()
        self.min_insync_replicas = min_insync_replicas
        self._lag_max_messages = -1
        self._assign(replicas or isr, isr)
        self.followers = {id: FollowerState(id) for id in self._other_replicas()} or _NO_FOLLOWERS
        self.update_counted()

    # Leader epochs.

    def begin_leader_epoch(
        self, leader_epoch: int, replicas: Sequence[int], isr: Sequence[int], log_end_offset: int, now_ms: int
    ) -> None:
        """Become the leader, or the leader of a new epoch. All earlier claims of followers are forgotten."""
        self.leader_epoch = leader_epoch
        self.epoch_start_offset = self.leader_end_offset = log_end_offset
        self._assign(replicas, isr)
        # A follower in the ISR has replica.lag.time.max.ms to catch up. The others do not hold the high watermark back.
        followers = {id: FollowerState(id, now_ms if id in isr else NEVER_MS) for id in self._other_replicas()}
        self.followers = followers or _NO_FOLLOWERS
        self.update_counted()

    def begin_follower_epoch(self, leader_epoch: int, replicas: Sequence[int], isr: Sequence[int]) -> None:
        """Become a follower. The high watermark then comes with the leader's responses."""
        self.leader_epoch = leader_epoch
        self._assign(replicas, isr)
        self.followers = _NO_FOLLOWERS
        self.update_counted()

    def update_replicas_and_isr(self, replicas: Sequence[int], isr: Sequence[int]) -> None:
        """Apply a change by the controller within the leader epoch. It decides about any proposal in flight."""
        known = self.followers
        self._assign(replicas, isr)
        self.followers = {id: known.get(id) or FollowerState(id) for id in self._other_replicas()} or _NO_FOLLOWERS
        self.update_counted()

    def _assign(self, replicas: Sequence[int], isr: Sequence[int]) -> None:
        self.proposal: IsrProposal | None = None
        # Those of the metadata image, which does not change them.
        self.replicas, self.isr = replicas, isr
        self._check_min_isr()

    def _other_replicas(self) -> list[int]:
        return [id for id in dict.fromkeys((*self.replicas, *self.isr)) if id != self.local_id]

    # The high watermark.

    def set_min_insync_replicas(self, min_insync_replicas: int) -> None:
        """Apply a changed min.insync.replicas."""
        self.min_insync_replicas = min_insync_replicas
        self._check_min_isr()

    def set_lag_max_messages(self, lag_max_messages: int) -> None:
        """Apply a changed replica.lag.max.messages; -1 for no limit."""
        self._lag_max_messages = lag_max_messages

    def _check_min_isr(self) -> None:
        self.is_under_min_isr = len(self.isr) < min(self.min_insync_replicas, len(self.replicas))

    def advance_high_watermark(self, leader_position: int) -> bool:
        """Advance the high watermark to the lowest position of the maximal ISR. Returns whether it advanced."""
        committed = leader_position
        if self.followers:
            if self.is_under_min_isr:
                return False
            for follower in self._counted:
                if follower.log_end_offset < committed:
                    committed = follower.log_end_offset
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    def update_counted(self) -> None:
        """Find the followers whose claims hold the high watermark back: the maximal ISR, and those that are joining."""
        maximal = self.maximal_isr
        counted = [follower for id, follower in self.followers.items() if id in maximal or follower.is_joining]
        self._counted = tuple(counted)

    # The in-sync replicas.

    @property
    def maximal_isr(self) -> set[int]:
        """The replicas that may be in the ISR now, as far as the leader knows."""
        return {*self.isr, *(self.proposal.isr if self.proposal is not None else ())}

    def can_join(self, follower: FollowerState, leader_end_offset: int) -> bool:
        """Return whether the positions of a follower allow it to join the ISR. The caller checks its broker."""
        claim = follower.log_end_offset
        if self.proposal is not None or follower.broker_id in self.isr:
            return False
        if claim < self.high_watermark or claim < self.epoch_start_offset:
            return False
        if 0 <= self._lag_max_messages < leader_end_offset - claim:
            return False
        return not self.is_under_min_isr or claim >= leader_end_offset

    def out_of_sync_replicas(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> list[int]:
        """Return the followers in the ISR that must leave it.

        By default those that were not caught up within replica.lag.time.max.ms. With replica.lag.max.messages, those
        with a larger lag, and those that are not caught up and have sent no Fetch within that time.
        """
        if self.proposal is not None:
            return []
        limit = self._lag_max_messages
        removed = []
        for id, follower in self.followers.items():
            if id not in self.isr:
                continue
            is_in_sync = follower.is_caught_up(leader_end_offset, now_ms, lag_time_max_ms)
            if limit >= 0:
                is_in_sync = leader_end_offset - follower.log_end_offset <= limit and (
                    is_in_sync or now_ms - follower.last_fetch_ms <= lag_time_max_ms
                )
            if not is_in_sync:
                removed.append(id)
        return removed

    def propose(self, isr: list[int]) -> IsrProposal:
        """Begin a change of the ISR. Until its outcome is known, no other one may begin."""
        self.proposal = IsrProposal(self.isr, isr, self.leader_epoch, self.partition_epoch)
        for follower in self.followers.values():
            if follower.broker_id in isr:
                follower.is_joining = False
        self.update_counted()
        return self.proposal

    def withdraw_proposal(self) -> None:
        """Return to the stored ISR. Only if the controller has certainly not made the change."""
        self.proposal = None
        self.update_counted()

    def commit_isr(self, isr: Sequence[int], partition_epoch: int) -> None:
        """Apply the ISR that the controller has stored for the proposal."""
        self.isr = isr
        self._check_min_isr()
        self.partition_epoch = partition_epoch
        for follower in self.followers.values():
            if follower.broker_id in isr:
                follower.is_joining = False
        self.withdraw_proposal()

    def mark_caught_up(self, end_offset: int, now_ms: int) -> None:
        """Record an append after which the log ends at `end_offset`. Followers at the former end were caught up now.

        A follower sends no further claims for an idle partition, so the time of its last Fetch says nothing.
        """
        former_end, self.leader_end_offset = self.leader_end_offset, end_offset
        for follower in self.followers.values():
            if follower.log_end_offset == former_end:
                follower.last_caught_up_ms = now_ms


RACK_AWARE = ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector")
NO_REPLICA = -1


def select_read_replica(
    state: PartitionState,
    rack: str,
    fetch_offset: int,
    brokers: Mapping[int, BrokerRegistration],
    reachable: Container[int],
) -> int:
    """Return the follower from which a consumer in a rack should read; -1 for the leader (KIP-392).

    Candidates are live followers in the ISR that have the fetch offset, and that the consumer can reach. The leader is
    preferred if it is in the rack, then the follower with the highest log end offset; of several, the one that was
    caught up last.
    """
    leader = brokers.get(state.local_id)
    if leader is not None and leader.rack == rack:
        return NO_REPLICA
    candidates = [
        (follower.log_end_offset, follower.last_caught_up_ms, -id)
        for id, follower in state.followers.items()
        if id in state.isr
        and id in reachable
        and brokers[id].rack == rack
        and follower.log_end_offset >= fetch_offset
        and 0 <= follower.log_start_offset <= fetch_offset
    ]
    return -max(candidates)[2] if candidates else NO_REPLICA


def is_listed(throttled: Container[str], partition: int, broker_id: int) -> bool:
    """Return whether leader. or follower.replication.throttled.replicas contains a partition's replica on a broker.

    `throttled`: the set of its pairs (config/topic_config.py).
    """
    return _ALL_REPLICAS in throttled or f"{partition}:{broker_id}" in throttled
