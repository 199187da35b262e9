"""Share partitions of the running brokers, seen from outside (KIP-932).

- The ranges in flight are adjacent: nothing between the start and the end is missing. The start and the end never fall,
  and what is finished stays so, as long as the object lives.
- A delivery count is at most the limit. A lock ends in time, and so does the wait for a change that is being stored.
- What the leader holds for finished, its share coordinator has stored: the one of the current leader epoch of
  __share_group_state, for the leader epoch that has read the state last.
- In the stored states the start never falls, unless the state is initialized again. What is finished there may come
  back: a leader that did not hear that its write was stored delivers the record again, with a higher count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.coordinator.runtime.coordinator_context import ACTIVE
from kbroker.share.in_flight import FINISHED, Span
from kbroker.share.partition import RELEASE_RETRY_MS
from kbroker.simulation.invariants.broker import BrokenInvariant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kbroker.coordinator.share.records import ShareSnapshot
    from kbroker.coordinator.share.share_partition_state import SharePartitionKey
    from kbroker.coordinator.share.share_shard import ShareGroupOffset
    from kbroker.share.leader import SharePartitionLeader
    from kbroker.simulation.checker.history import TopicPartition
    from kbroker.simulation.runtime.machine import Machine

# The checks, at intervals of 50 ms, in which the lock of a broker that runs may be overdue.
OVERDUE_CHECKS = 20


class _Seen:
    """What the last check has found: the start, the end, and the finished ranges between."""

    def __init__(self, leader: SharePartitionLeader) -> None:
        # Also keeps the object, so that its identity is not used again.
        self.leader = leader
        self.start = self.end = -1
        self.finished: list[Span] = []
        self.overdue = 0


class SharePartitionInvariants:
    """`epoch_of`: returns the current leader epoch of a partition of __share_group_state, None if it has no leader."""

    def __init__(self, machines: Sequence[Machine], epoch_of: Callable[[TopicPartition], int | None]) -> None:
        self._machines = machines
        self._epoch_of = epoch_of
        self._seen: dict[SharePartitionLeader, _Seen] = {}
        # The last states that certainly were committed.
        self._stored: dict[SharePartitionKey, ShareSnapshot] = {}

    def check(self) -> None:
        """Raise BrokenInvariant if an invariant does not hold."""
        stored = dict(self._stored_states())
        seen, self._seen = self._seen, {}
        for machine in self._machines:
            services = machine.services
            for leader in [] if services is None else services.share.leaders.values():
                if leader.state is not None and leader.failure is None:
                    self._seen[leader] = found = seen.get(leader) or _Seen(leader)
                    try:
                        self._check_leader(machine, leader, found)
                        self._check_finished(leader, stored.get(leader.key))
                    except BrokenInvariant as broken:
                        where = f"{machine.name}, {leader.partition.tp} of {leader.key.group_id}"
                        raise BrokenInvariant(f"{where}: {broken}, of {leader.state.ranges}") from None

    def states_of_deleted_topics(self) -> list[SharePartitionKey]:
        """Return what the coordinators have to delete yet."""
        return [
            key
            for key, _ in self._stored_states()
            for machine in self._machines
            if machine.services is not None and key.topic_id not in machine.services.metadata.topics_by_id
        ]

    def _stored_states(self) -> Iterator[tuple[SharePartitionKey, ShareGroupOffset]]:
        """Yield the states of the current coordinators, as far as these are loaded."""
        for machine in self._machines:
            services = machine.services
            for context in [] if services is None else services.share_states.runtime.contexts():
                if context.state is ACTIVE and context.epoch == self._epoch_of(context.tp):
                    is_committed = not context.locked_keys()
                    for key, current in context.shard.partitions.items():
                        self._check_stored(key, current.state, is_committed=is_committed)
                        yield key, current

    def _check_stored(self, key: SharePartitionKey, state: ShareSnapshot, *, is_committed: bool) -> None:
        before = self._stored.get(key)
        if is_committed:
            self._stored[key] = state
        if before is None or before is state or state.state_epoch != before.state_epoch:
            return
        if state.start_offset < before.start_offset:
            raise BrokenInvariant(f"{key}: the stored start falls from {before.start_offset} to {state.start_offset}")

    def _check_leader(self, machine: Machine, leader: SharePartitionLeader, seen: _Seen) -> None:
        state, policy = leader.state, leader.settings.delivery
        assert state is not None
        now_ms = leader._environment.clock.mono_ms()
        position = state.start
        is_overdue = False
        for each in state.ranges:
            if each.first != position or each.last < each.first:
                raise BrokenInvariant(f"range {each.first} to {each.last} does not follow {position - 1}")
            position = each.last + 1
            if each.delivery_count > policy.delivery_count_limit:
                raise BrokenInvariant(f"offset {each.first} was delivered {each.delivery_count} times")
            if each.member_id and each.state not in FINISHED and not each.is_pending:
                until_ms = each.lock_until_ms
                is_overdue = is_overdue or until_ms < now_ms
                if until_ms > now_ms + max(policy.lock_duration_ms, RELEASE_RETRY_MS):
                    raise BrokenInvariant(f"offset {each.first} is locked for {until_ms - now_ms} ms")
        if position - 1 != state.end or state.start < seen.start or state.end < seen.end:
            raise BrokenInvariant(f"start {state.start} and end {state.end} follow {seen.start} and {seen.end}")
        seen.overdue = seen.overdue + 1 if is_overdue and not machine.paused else 0
        if seen.overdue > OVERDUE_CHECKS:
            raise BrokenInvariant("a lock has not ended in time")
        finished = [Span(each.first, each.last) for each in state.ranges if each.state in FINISHED]
        lost = _first_missing(seen.finished, state.start, finished)
        if lost is not None:
            raise BrokenInvariant(f"offset {lost} was finished, and is not any more")
        seen.start, seen.end, seen.finished = state.start, state.end, finished

    def _check_finished(self, leader: SharePartitionLeader, stored: ShareGroupOffset | None) -> None:
        """Check that what the leader holds for finished is stored. Holes are stored with the next change."""
        state = leader.state
        if state is None or stored is None or stored.leader_epoch != leader.leader_epoch or leader._writing is not None:
            return
        if stored.state.state_epoch != state._state_epoch:
            return
        held = [Span(each.first, each.last) for each in state.ranges if each.state in FINISHED and not each.is_pending]
        before = [Span(stored.state.start_offset, state.start - 1)] if state.start > stored.state.start_offset else []
        known = _finished(stored.state) + [Span(each.first, each.last) for each in state._unstored]
        missing = _first_missing([*before, *held], max(stored.state.start_offset, 0), known)
        if missing is not None:
            raise BrokenInvariant(f"offset {missing} is finished, and that is not stored: {stored.state}")


def _finished(state: ShareSnapshot) -> list[Span]:
    return [Span(batch.first, batch.last) for batch in state.batches if batch.state in FINISHED]


def _first_missing(spans: Iterable[Span], start: int, covering: Iterable[Span]) -> int | None:
    """Return the first offset from `start` on that is in `spans`, but not in `covering`; None if there is none."""
    known = sorted(covering)
    for span in spans:
        position = max(span.first, start)
        for each in known:
            if each.first <= position <= each.last:
                position = each.last + 1
        if position <= span.last:
            return position
    return None
