"""Balances preferred leaders: brokers lead equally many partitions, in total and of each topic.

Only the order of replicas changes.
"""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from kbroker.metadata.topics.placement.balance_replicas import surplus
from kbroker.metadata.topics.placement.replica_table import ReplicaTable

# led[leader][follower] has partitions.
_Led = dict[int, dict[int, dict[int, None]]]


def balance_leaders(table: ReplicaTable) -> bool:
    """Transfer preferred leadership to followers until no chain of transfers helps. Returns whether anything changed.

    All followers of a broker that leads too many partitions may be on brokers that lead as many; these then transfer
    other partitions in turn. The result is the best that the given replicas allow.
    """
    leaders, accepting = table.leaders, table.accepting
    if not accepting or max(leaders[b] for b in accepting) - min(leaders[b] for b in accepting) < 2:
        return False
    led = _led(table)
    has_changed = False
    while path := _next_path(table, led):
        source, target = path[0], path[-1]
        amount = min(surplus(leaders, accepting, source, target), *(len(led[a][b]) for a, b in _steps(path)))
        # The last transfer first, so that no broker on the path transfers a partition that it has just received.
        for leader, follower in reversed(_steps(path)):
            for partition in list(led[leader][follower])[:amount]:
                _transfer(table, led, partition, leader, follower)
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
        self.leaders: dict[str, list[int]] = {}
        # The partitions that can be transferred: [leader][follower][topic]. A topic without any is not in it, so a step
        # takes time for the topics that two brokers share, not for all topics.
        self._led: dict[int, dict[int, dict[str, dict[int, None]]]] = {broker: {} for broker in table.accepting}
        for partition, (placed, replicas) in enumerate(zip(table.partitions, table.replicas, strict=True)):
            self.leaders.setdefault(placed.topic, [0] * len(table.ids))[replicas[0]] += 1
            if table.is_movable[partition] and table.accepts[replicas[0]]:
                self._enter(placed.topic, partition)

    def improve(self, topic: str) -> bool:
        """Transfer one partition of a topic. Returns False if that is impossible, or the topic is spread evenly."""
        total = self._table.leaders
        for source, target in self._uneven(topic):
            if topic not in self._led[source].get(target, ()):
                continue
            if total[source] > total[target]:
                self._transfer(topic, source, target)
                return True
            for other in self._led[target].get(source, ()):
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

    def _enter(self, topic: str, partition: int) -> None:
        leader, *followers = self._table.replicas[partition]
        for follower in followers:
            if self._table.accepts[follower]:
                self._led[leader].setdefault(follower, {}).setdefault(topic, {})[partition] = None

    def _transfer(self, topic: str, leader: int, follower: int) -> None:
        partition = next(iter(self._led[leader][follower][topic]))
        for other in self._table.replicas[partition][1:]:
            if self._table.accepts[other]:
                topics = self._led[leader][other]
                del topics[topic][partition]
                if not topics[topic]:
                    del topics[topic]
        self._table.prefer(partition, follower)
        self._enter(topic, partition)
        self.leaders[topic][leader] -= 1
        self.leaders[topic][follower] += 1


def _led(table: ReplicaTable) -> _Led:
    led: _Led = {broker: {} for broker in table.accepting}
    for partition, replicas in enumerate(table.replicas):
        if table.is_movable[partition] and table.accepts[replicas[0]]:
            _enter(table, led, partition)
    return led


def _enter(table: ReplicaTable, led: _Led, partition: int) -> None:
    leader, *followers = table.replicas[partition]
    for follower in followers:
        if table.accepts[follower]:
            led[leader].setdefault(follower, {})[partition] = None


def _transfer(table: ReplicaTable, led: _Led, partition: int, leader: int, follower: int) -> None:
    for other in table.replicas[partition][1:]:
        if table.accepts[other]:
            del led[leader][other][partition]
    table.prefer(partition, follower)
    _enter(table, led, partition)


def _steps(path: list[int]) -> list[tuple[int, int]]:
    return list(pairwise(path))


def _next_path(table: ReplicaTable, led: _Led) -> list[int] | None:
    """Return the shortest chain of followers from a broker that leads most to one that leads at least 2 fewer."""
    leaders = table.leaders
    fewest = min(leaders[broker] for broker in table.accepting)
    for source in sorted(table.accepting, key=lambda broker: (-leaders[broker], broker)):
        if leaders[source] - fewest < 2:
            return None
        if path := _path_from(source, leaders, led):
            return path
    return None


def _path_from(source: int, leaders: list[int], led: _Led) -> list[int] | None:
    """Return the shortest path to a broker that leads fewer; of several, the one to the broker that leads fewest."""
    came_from = {source: source}
    reached = deque([source])
    while reached:
        ends: list[int] = []
        for _ in range(len(reached)):
            broker = reached.popleft()
            for follower, partitions in led[broker].items():
                if partitions and follower not in came_from:
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
