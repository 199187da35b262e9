"""Balances racks, then replicas: spreads partitions over racks, then gives brokers equally many replicas.

Every move improves its goal and worsens no earlier one, so both searches end.

Balances preferred leaders: brokers lead equally many partitions, in total and of each topic.

Only the order of replicas changes.

Balances bytes: exchanges large replicas for small ones, so that the numbers of replicas stay equal.

Balance: moves that make a layout meet the goals of placement.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise

from kbroker.metadata.reassignments.placement.cluster_layout import BYTES_TOLERANCE, ClusterLayout, with_replicas
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan, plan_of
from kbroker.metadata.reassignments.placement.replica_table import ReplicaTable


def balance_racks(table: ReplicaTable) -> bool:
    """Spread the replicas of each partition over the racks. Returns whether anything moved."""
    if len({table.racks[broker] for broker in table.accepting}) < 2:
        return False
    has_moved = False
    for partition, replicas in enumerate(table.replicas):
        if table.is_movable[partition]:
            racks = [table.racks[broker] for broker in replicas]
            while len(set(racks)) < len(racks) and _improve_racks(table, partition):
                has_moved = True
                racks = [table.racks[broker] for broker in replicas]
    return has_moved


def _improve_racks(table: ReplicaTable, partition: int) -> bool:
    """Move one replica to a rack that has at least two fewer of the partition. Returns False if there is none."""
    racks = table.racks
    replicas = [broker for broker in table.replicas[partition] if table.accepts[broker]]
    if not replicas:
        return False
    source = max(
        replicas,
        key=lambda broker: (
            table.replicas_in_rack(partition, racks[broker]), table.counts[broker], table.sizes[broker], -broker
        ),
    )  # fmt: skip
    target = table.best_broker(table.replicas[partition])
    if target is None:
        return False
    gain = table.replicas_in_rack(partition, racks[source]) - table.replicas_in_rack(partition, racks[target])
    if gain < 2:
        return False
    table.move(partition, source, target)
    return True


class _ReplicasBySize:
    """The movable replicas of each broker in size classes; within a class, sizes differ by less than a factor of 2."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._classes: list[dict[int, dict[int, None]]] = [{} for _ in table.ids]
        for partition, replicas in enumerate(table.replicas):
            if table.is_movable[partition]:
                for broker in replicas:
                    self._add(partition, broker)

    def _add(self, partition: int, broker: int) -> None:
        size_class = self._table.partition_sizes[partition].bit_length()
        self._classes[broker].setdefault(size_class, {})[partition] = None

    def move(self, partition: int, source: int, target: int) -> None:
        self._table.move(partition, source, target)
        del self._classes[source][self._table.partition_sizes[partition].bit_length()][partition]
        self._add(partition, target)

    def of_size(self, broker: int, size_bytes: int) -> Iterator[int]:
        """Yield the partitions of a broker, those of about this size first. None may move during the iteration."""
        classes = self._classes[broker]
        wanted = size_bytes.bit_length()
        for size_class in sorted(classes, key=lambda size_class: (abs(size_class - wanted), size_class)):
            yield from classes[size_class]


def balance_counts(table: ReplicaTable) -> bool:
    """Move replicas from brokers with many to brokers with fewer. Returns whether anything moved.

    As many move between two brokers as one has too many and the other too few. If the source stores more bytes than
    average, replicas of a size that removes its surplus are chosen, otherwise small ones.
    """
    if not table.accepting or _spread(table.counts, table.accepting) < 2:
        return False
    by_size = _ReplicasBySize(table)
    # Pairs of brokers between which nothing can move, and pairs of a broker and a rack.
    blocked: set[tuple[int, int]] = set()
    blocked_racks: set[tuple[int, int]] = set()
    has_moved = False
    while pair := _next_pair(table, blocked, blocked_racks):
        source, target = pair
        chosen = _choose(table, by_size, source, target, blocked_racks)
        for partition in chosen:
            by_size.move(partition, source, target)
        if chosen:
            has_moved = True
        else:
            blocked.add(pair)
    return has_moved


def _spread(counts: list[int], brokers: list[int]) -> int:
    of_brokers = [counts[broker] for broker in brokers]
    return max(of_brokers) - min(of_brokers)


def surplus(counts: list[int], brokers: list[int], source: int, target: int) -> int:
    """Return how many should move from a broker with many to one with at least 2 fewer, at least 1.

    This is the smaller of what one has above the average and the other below. If racks keep both on one side of the
    average, it is a quarter of their difference, since several brokers share the surplus of one.
    """
    total = sum(counts[broker] for broker in brokers)
    above = counts[source] + -total // len(brokers)
    below = total // len(brokers) - counts[target]
    if above > 0 and below > 0:
        return min(above, below)
    return max((counts[source] - counts[target]) // 4, 1)


def _next_pair(
    table: ReplicaTable, blocked: set[tuple[int, int]], blocked_racks: set[tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the two brokers whose counts differ most, by at least 2, and between which replicas may move."""
    counts = table.counts
    ascending = sorted(table.accepting, key=lambda broker: (counts[broker], broker))
    for source in reversed(ascending):
        for target in ascending:
            if counts[source] - counts[target] < 2:
                break
            if (source, target) not in blocked and (source, table.racks[target]) not in blocked_racks:
                return source, target
    return None


def _choose(
    table: ReplicaTable, by_size: _ReplicasBySize, source: int, target: int, blocked_racks: set[tuple[int, int]]
) -> list[int]:
    """Return the partitions whose replicas move from one broker to another; [] if none can."""
    counts, sizes, accepting = table.counts, table.sizes, table.accepting
    amount = surplus(counts, accepting, source, target)
    excess_bytes = sizes[source] - sum(sizes[broker] for broker in accepting) // len(accepting)
    wanted_bytes = max(excess_bytes // amount, 0)
    chosen: list[int] = []
    is_rack_open = False
    for partition in by_size.of_size(source, wanted_bytes):
        if table.keeps_racks(partition, source, target):
            is_rack_open = True
            if target not in table.replicas[partition]:
                chosen.append(partition)
                if len(chosen) >= amount:
                    break
    if not is_rack_open:
        blocked_racks.add((source, table.racks[target]))
    return chosen


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


# How many replicas are tried on each side of an exchange, and how many are considered to find them. A full search would
# compare each replica of a broker with each of another, and could find exchanges that these limits miss.
_TRIED, _LOOKED_AT = 8, 32

# A replica's size and partition, in ascending order.
_Sorted = list[tuple[int, int]]


def balance_bytes(table: ReplicaTable) -> bool:
    """Move bytes from brokers above the average to brokers below it. Returns whether anything moved.

    Ends when all brokers are within BYTES_TOLERANCE of the average, or no exchange between two brokers helps.
    """
    blocked: set[tuple[int, int]] = set()
    if _next_pair_by_bytes(table, blocked) is None:
        return False
    exchanges = _Exchanges(table)
    has_moved = False
    while pair := _next_pair_by_bytes(table, blocked):
        if exchanges.exchange(*pair):
            has_moved = True
        else:
            blocked.add(pair)
    return has_moved


def _next_pair_by_bytes(table: ReplicaTable, blocked: set[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the brokers with the most and the fewest bytes, if one of them is outside the tolerance.

    The difference of the two must exceed it as well: racks may keep all brokers of a rack above the average.
    """
    if not table.accepting:
        return None
    sizes = table.sizes
    average = _average(table)
    low, high = average * (1 - BYTES_TOLERANCE), average * (1 + BYTES_TOLERANCE)
    ascending = sorted(table.accepting, key=lambda broker: (sizes[broker], broker))
    for source in reversed(ascending):
        for target in ascending:
            is_outside = sizes[source] > high or sizes[target] < low
            if not is_outside or sizes[source] - sizes[target] <= average * BYTES_TOLERANCE:
                break
            if (source, target) not in blocked:
                return source, target
    return None


def _average(table: ReplicaTable) -> int:
    return sum(table.sizes[broker] for broker in table.accepting) // len(table.accepting)


class _Exchanges:
    """Finds exchanges of replicas between two brokers. Leaders are exchanged for leaders, followers for followers."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        # By broker: followers, then leaders.
        self._sorted: list[tuple[_Sorted, _Sorted]] = [([], []) for _ in table.ids]
        for partition, replicas in enumerate(table.replicas):
            if table.is_movable[partition]:
                item = (table.partition_sizes[partition], partition)
                for place, broker in enumerate(replicas):
                    self._sorted[broker][place == 0].append(item)
        for of_broker in self._sorted:
            for items in of_broker:
                items.sort()

    def exchange(self, source: int, target: int) -> bool:
        """Move a replica from one broker to another, and a smaller one back. Returns False if none fit.

        Nothing has to move back if the source has one replica more than the target.
        """
        table = self._table
        wanted = surplus(table.sizes, table.accepting, source, target)
        # Each exchange moves at least this many bytes, which bounds their number by the number of replicas.
        least = max(wanted // (2 * table.counts[source] + 1), 1)
        most = table.sizes[source] - table.sizes[target] - 1
        for are_leaders in (False, True):
            for returned in self._returned(source, target, are_leaders):
                returned_bytes = table.partition_sizes[returned] if returned is not None else 0
                for partition in self._sent(source, target, are_leaders, returned_bytes + wanted):
                    gain = table.partition_sizes[partition] - returned_bytes
                    if least <= gain <= most:
                        self._move(partition, source, target, are_leaders)
                        if returned is not None:
                            self._move(returned, target, source, are_leaders)
                        return True
        return False

    def _returned(self, source: int, target: int, are_leaders: bool) -> Iterator[int | None]:
        """Yield small replicas that may move from the target back to the source; None if none has to."""
        table = self._table
        if table.counts[source] - table.counts[target] == 1 and (
            not are_leaders or table.leaders[source] - table.leaders[target] == 1
        ):
            yield None
        yield from self._fitting(self._sorted[target][are_leaders][:_LOOKED_AT], target, source)

    def _sent(self, source: int, target: int, are_leaders: bool, size_bytes: int) -> Iterator[int]:
        """Yield replicas that may move from the source: the largest up to a size, then the smallest above it."""
        items = self._sorted[source][are_leaders]
        end = bisect_right(items, (size_bytes, len(self._table.replicas)))
        yield from self._fitting(items[max(end - _LOOKED_AT, 0) : end][::-1], source, target)
        yield from self._fitting(items[end : end + _LOOKED_AT], source, target)

    def _fitting(self, items: _Sorted, source: int, target: int) -> Iterator[int]:
        """Yield the first partitions whose replicas may move from one broker to another."""
        fitting = (partition for _, partition in items if self._may_move(partition, source, target))
        return islice(fitting, _TRIED)

    def _may_move(self, partition: int, source: int, target: int) -> bool:
        table = self._table
        return target not in table.replicas[partition] and table.keeps_racks(partition, source, target)

    def _move(self, partition: int, source: int, target: int, is_leader: bool) -> None:
        self._table.move(partition, source, target)
        item = (self._table.partition_sizes[partition], partition)
        del self._sorted[source][is_leader][bisect_left(self._sorted[source][is_leader], item)]
        insort(self._sorted[target][is_leader], item)


# In descending priority: no step undoes the result of an earlier one.
STEPS = (balance_racks, balance_counts, balance_leaders, balance_bytes, balance_topic_leaders)


def balance(layout: ClusterLayout) -> ReassignmentPlan:
    """Return the plan that balances a cluster, without moves if it is balanced. Raises PlanRefused.

    Replicas on brokers that accept none stay there, and so do replicas of partitions that have no leader or are being
    reassigned. Where racks or sizes prevent equal brokers, the plan ends when no single move or exchange between two
    brokers improves the balance. It prefers to move few bytes, but does not search for the minimum.
    """
    current = layout
    while True:
        # A new table for each pass, so that a second plan would begin with the same table.
        table = ReplicaTable(current)
        changes = [step(table) for step in STEPS]
        if not any(changes):
            return plan_of(layout, {(part.topic, part.partition): part.replicas for part in current.partitions})
        current = with_replicas(current, table.result())
