"""Balances preferred leaders: brokers lead equally many partitions, in total and of each topic.

Only the order of replicas changes.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise

from kbroker.metadata.topics.placement.balance_replicas import surplus
from kbroker.metadata.topics.placement.replica_table import ReplicaTable

# The group of all partitions, where topics do not matter.
_ALL = ""


def balance_leaders(table: ReplicaTable) -> bool:
    """Transfer preferred leadership to followers until no chain of transfers helps. Returns whether anything changed.

    All followers of a broker that leads too many partitions may be on brokers that lead as many; these then transfer
    other partitions in turn. The result is the best that the given replicas allow.
    """
    leaders, accepting = table.leaders, table.accepting
    if not accepting or max(leaders[b] for b in accepting) - min(leaders[b] for b in accepting) < 2:
        return False
    led = _LedPartitions(table, [_ALL] * len(table.partitions))
    has_changed = False
    while path := _next_path(table, led):
        source, target = path[0], path[-1]
        counts = [len(led.groups(leader, follower)[_ALL]) for leader, follower in pairwise(path)]
        amount = min(surplus(leaders, accepting, source, target), *counts)
        # The last transfer first, so that no broker on the path transfers a partition that it has just received.
        for leader, follower in reversed(list(pairwise(path))):
            for partition in list(led.groups(leader, follower)[_ALL])[:amount]:
                led.transfer(partition, follower)
        has_changed = True
    return has_changed


def balance_topic_leaders(table: ReplicaTable) -> bool:
    """Spread the leaders of each topic, since they carry its load. Returns whether anything changed.

    Each step transfers a partition to a broker that leads at least two fewer of the topic. If the totals of the two
    brokers would then differ more than before, a partition of another topic is transferred back, if that topic is
    spread no worse afterwards.
    """
    topics = _LedTopics(table)
    has_changed = False
    for topic in topics.leaders:
        while topics.improve(topic):
            has_changed = True
    return has_changed


class _LedTopics:
    """The leaders of each topic: `leaders` has the counts by topic and broker."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._led = _LedPartitions(table, [placed.topic for placed in table.partitions])
        self.leaders: dict[str, list[int]] = {}
        for placed, replicas in zip(table.partitions, table.replicas, strict=True):
            self.leaders.setdefault(placed.topic, [0] * len(table.ids))[replicas[0]] += 1

    def improve(self, topic: str) -> bool:
        """Transfer one partition of a topic. Returns False if that is impossible, or the topic is spread evenly."""
        total = self._table.leaders
        for source, target in self._uneven(topic):
            if topic not in self._led.groups(source, target):
                continue
            if total[source] > total[target]:
                self._transfer(topic, source, target)
                return True
            for other in self._led.groups(target, source):
                if self.leaders[other][target] > self.leaders[other][source]:
                    self._transfer(topic, source, target)
                    self._transfer(other, target, source)
                    return True
        return False

    def _uneven(self, topic: str) -> Iterator[tuple[int, int]]:
        """Yield the pairs of brokers of which one leads at least two more, in descending order of the difference."""
        leaders = self.leaders[topic]
        ascending = sorted(self._table.accepting, key=lambda broker: (leaders[broker], broker))
        for source in reversed(ascending):
            for target in ascending:
                if leaders[source] - leaders[target] < 2:
                    break
                yield source, target

    def _transfer(self, topic: str, leader: int, follower: int) -> None:
        self._led.transfer(next(iter(self._led.groups(leader, follower)[topic])), follower)
        self.leaders[topic][leader] -= 1
        self.leaders[topic][follower] += 1


class _LedPartitions:
    """The partitions that brokers lead and may transfer, by leader, follower and group.

    `group_of`: the groups of the partitions. A group without partitions is not in it, so a step takes time for the
    topics that two brokers share, not for all topics.
    """

    def __init__(self, table: ReplicaTable, group_of: list[str]) -> None:
        self._table = table
        self._group_of = group_of
        self._led: dict[int, dict[int, dict[str, dict[int, None]]]] = {broker: {} for broker in table.accepting}
        for partition, replicas in enumerate(table.replicas):
            if table.is_movable[partition] and table.accepts[replicas[0]]:
                self._enter(partition)

    def groups(self, leader: int, follower: int) -> Mapping[str, Mapping[int, None]]:
        """Return the partitions that the leader may transfer to the follower, by group."""
        return self._led[leader].get(follower, {})

    def followers(self, leader: int) -> Iterator[int]:
        """Yield the brokers to which the leader may transfer partitions."""
        return (follower for follower, groups in self._led[leader].items() if groups)

    def transfer(self, partition: int, follower: int) -> None:
        """Make a follower of a partition its preferred leader."""
        leader, *others = self._table.replicas[partition]
        group = self._group_of[partition]
        for other in others:
            if self._table.accepts[other]:
                groups = self._led[leader][other]
                del groups[group][partition]
                if not groups[group]:
                    del groups[group]
        self._table.prefer(partition, follower)
        self._enter(partition)

    def _enter(self, partition: int) -> None:
        leader, *followers = self._table.replicas[partition]
        for follower in followers:
            if self._table.accepts[follower]:
                groups = self._led[leader].setdefault(follower, {})
                groups.setdefault(self._group_of[partition], {})[partition] = None


def _next_path(table: ReplicaTable, led: _LedPartitions) -> list[int] | None:
    """Return the shortest chain of followers from a broker that leads most to one that leads at least 2 fewer."""
    leaders = table.leaders
    fewest = min(leaders[broker] for broker in table.accepting)
    for source in sorted(table.accepting, key=lambda broker: (-leaders[broker], broker)):
        if leaders[source] - fewest < 2:
            return None
        if path := _path_from(source, leaders, led):
            return path
    return None


def _path_from(source: int, leaders: list[int], led: _LedPartitions) -> list[int] | None:
    """Return the shortest path to a broker that leads fewer; of several, the one to the broker that leads fewest."""
    came_from = {source: source}
    reached = deque([source])
    while reached:
        ends: list[int] = []
        for _ in range(len(reached)):
            broker = reached.popleft()
            for follower in led.followers(broker):
                if follower not in came_from:
                    came_from[follower] = broker
                    reached.append(follower)
                    if leaders[source] - leaders[follower] >= 2:
                        ends.append(follower)
        if ends:
            path = [min(ends, key=lambda broker: (leaders[broker], broker))]
            while path[-1] != source:
                path.append(came_from[path[-1]])
            return path[::-1]
    return None
