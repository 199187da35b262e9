"""The assignor `uniform` for members with different subscriptions (pure).

Members keep their targets at first. Each free partition goes to the least loaded subscriber of its topic, and then
topics are balanced one after another: as long as the most loaded subscriber of a topic, among those that own partitions
of it, has at least two partitions more than the least loaded one, it passes one on. This goes round the topics until
nothing moves. Topics with many partitions per subscriber come first.

These are the decisions of Kafka 4.4, so the result is the same for the same order of members.
"""

from bisect import insort
from collections.abc import Mapping, Sequence

from kbroker.coordinator.group.assignors.members import (
    Assignment,
    Assignments,
    MemberSpec,
    free_partitions,
    keep_targets,
)
from kbroker.runtime.turns import paced, yield_if_due

# Balance is not always possible, and nearly reached in the first rounds.
MAX_ROUNDS = 16


def assign_heterogeneous(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignments:
    """Return the target of each member."""
    kept, owned = keep_targets(members, partition_counts)
    assignment = _Assignment(members, partition_counts, kept)
    for topic_id in paced(assignment.topics):
        assignment.assign(topic_id, free_partitions(owned[topic_id], partition_counts[topic_id]))
    assignment.balance()
    return assignment.targets()


class _Assignment:
    """The partitions of each member, and how many it has. Members are numbers, in their order."""

    def __init__(
        self, members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int], kept: Assignments
    ) -> None:
        self._kept = kept
        self._sizes = [sum(map(len, target.values())) for target in kept.values()]
        # The members that subscribe to each topic, and the partitions of those that have any.
        self._subscribers: dict[bytes, list[int]] = {}
        self._partitions: dict[bytes, dict[int, list[int]]] = {topic_id: {} for topic_id in partition_counts}
        # The members whose partitions of a topic have changed.
        self._changed: dict[bytes, set[int]] = {topic_id: set() for topic_id in partition_counts}
        for member, spec in enumerate(paced(members.values())):
            for topic_id in spec.subscribed:
                if topic_id in partition_counts:
                    self._subscribers.setdefault(topic_id, []).append(member)
        for member, target in enumerate(paced(kept.values())):
            for topic_id, partitions in target.items():
                self._partitions[topic_id][member] = list(partitions)

        def position(topic_id: bytes) -> tuple[float, int, int, int]:
            count = len(self._subscribers[topic_id])
            # Kafka's order of ids: both halves are signed.
            high, low = (int.from_bytes(half, signed=True) for half in (topic_id[:8], topic_id[8:]))
            return -partition_counts[topic_id] / count, count, high, low

        self.topics: Sequence[bytes] = sorted(self._subscribers, key=position)

    def assign(self, topic_id: bytes, free: Sequence[int]) -> None:
        """Assign the free partitions of a topic."""
        if not free:
            return
        loads = _Loads(self._subscribers[topic_id], self._sizes)
        for partition in paced(free):
            self._add(topic_id, partition, loads.next_least_loaded())

    def balance(self) -> None:
        """Balance the topics until all others are balanced since the last one from which a partition has moved."""
        topics = [topic_id for topic_id in self.topics if len(self._subscribers[topic_id]) > 1]
        last: bytes | None = None
        for _ in range(MAX_ROUNDS):
            for topic_id in paced(topics):
                if topic_id == last:
                    return
                if self._balance_topic(topic_id) or last is None:
                    last = topic_id

    def _balance_topic(self, topic_id: bytes) -> bool:
        """Move partitions from the most to the least loaded subscribers of a topic. Returns whether any moved."""
        loads = _Loads(self._subscribers[topic_id], self._sizes)
        if loads.are_balanced_at_first:
            return False
        partitions = self._partitions[topic_id]
        has_moved = False
        while not loads.are_balanced:
            giver = loads.next_most_loaded()
            while giver is not None and not partitions.get(giver):
                loads.exclude_most_loaded()
                giver = loads.next_most_loaded()
            if giver is None:
                break
            receiver = loads.next_least_loaded()
            if loads.are_balanced:
                break
            self._add(topic_id, self._remove_last(topic_id, giver), receiver)
            has_moved = True
            yield_if_due()
        return has_moved

    def _add(self, topic_id: bytes, partition: int, member: int) -> None:
        insort(self._partitions[topic_id].setdefault(member, []), partition)
        self._sizes[member] += 1
        self._changed[topic_id].add(member)

    def _remove_last(self, topic_id: bytes, member: int) -> int:
        self._sizes[member] -= 1
        self._changed[topic_id].add(member)
        return self._partitions[topic_id][member].pop()

    def targets(self) -> Assignments:
        member_ids = list(self._kept)
        targets: dict[str, Assignment] = dict(self._kept)
        for topic_id, members in self._changed.items():
            for member in paced(members):
                member_id = member_ids[member]
                partitions = tuple(self._partitions[topic_id][member])
                if partitions:
                    targets[member_id] = {**targets[member_id], topic_id: partitions}
                else:
                    targets[member_id] = {key: ps for key, ps in targets[member_id].items() if key != topic_id}
        return targets


class _Loads:
    """The subscribers of a topic by their load, the number of their partitions.

    Those at the low end, up to `_low_end`, are filled up in turn; those at the high end, from `_high_start` up to
    `_high_end`, are emptied in turn. All of each end have had the same load when the turn began. After `_high_end` are
    those that have nothing to give.
    """

    def __init__(self, subscribers: Sequence[int], sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._members = members = sorted(subscribers, key=sizes.__getitem__)
        self._low_end = 0
        self._low_load = sizes[members[0]] - 1
        self._next_low = 0
        self._high_start = self._high_end = len(members)
        self._high_load = sizes[members[-1]] + 1
        self._next_high = len(members) - 1

    @property
    def are_balanced_at_first(self) -> bool:
        return self._sizes[self._members[-1]] - self._sizes[self._members[0]] <= 1

    @property
    def are_balanced(self) -> bool:
        return self._high_load - self._low_load <= 1

    def next_least_loaded(self) -> int:
        """Return the subscriber that gets the next partition."""
        if self._next_low >= self._low_end:
            self._low_load += 1
            self._low_end = self._load_end(self._low_end)
            self._next_low = 0
        self._next_low += 1
        return self._members[self._next_low - 1]

    def next_most_loaded(self) -> int | None:
        """Return the subscriber that gives the next partition, None if no other has any."""
        if self._next_high < self._high_start:
            if self._high_end <= self._high_start > 0:
                self._high_load = self._sizes[self._members[self._high_start - 1]]
            else:
                self._high_load -= 1
            while self._high_start > 0 and self._sizes[self._members[self._high_start - 1]] == self._high_load:
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return None
        self._next_high -= 1
        return self._members[self._next_high + 1]

    def exclude_most_loaded(self) -> None:
        """Exclude the subscriber that `next_most_loaded` has returned last."""
        members, index = self._members, self._next_high + 1
        self._high_end -= 1
        members[index], members[self._high_end] = members[self._high_end], members[index]

    def _load_end(self, start: int) -> int:
        end = start
        while end < len(self._members) and self._sizes[self._members[end]] == self._low_load:
            end += 1
        return end
