"""Balance: moves that make a layout meet the goals of placement (cluster_layout.py), found by local search.

Each step has one goal. It moves load between the two brokers whose loads differ most, and then between other pairs,
until nothing helps. A move improves the goal and worsens no earlier one, so the search ends.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, takewhile

from kbroker.metadata.reassignments.placement.cluster_layout import (
    BYTES_TOLERANCE,
    ClusterLayout,
    ReplicaTable,
    with_replicas,
)
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan, plan_of

# How many replicas are tried on each side of an exchange. A full search would compare each replica of a broker with
# each of another, and could find exchanges that this limit misses.
_TRIED = 8

# Loads by broker, such as the numbers of their replicas.
_Loads = list[int]


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


def _even_out(
    table: ReplicaTable,
    loads: _Loads,
    improve: Callable[[int, int], bool],
    is_uneven: Callable[[int, int], bool] | None = None,
) -> bool:
    """Call `improve` with a source and a target, the most uneven pair first, until it returns False for each pair.

    `is_uneven`: by default, the loads of the two differ by at least 2. Returns whether any call returned True.
    """
    is_uneven = is_uneven or (lambda source, target: loads[source] - loads[target] >= 2)
    blocked: set[tuple[int, int]] = set()
    has_improved = False
    while True:
        for pair in _uneven_pairs(table.accepting, loads, is_uneven):
            if pair not in blocked:
                if improve(*pair):
                    break
                blocked.add(pair)
        else:
            return has_improved
        has_improved = True


def _uneven_pairs(
    brokers: list[int], loads: _Loads, is_uneven: Callable[[int, int], bool]
) -> Iterator[tuple[int, int]]:
    ascending = sorted(brokers, key=lambda broker: (loads[broker], broker))
    for source in reversed(ascending):
        yield from ((source, target) for target in takewhile(partial(is_uneven, source), ascending))


def _surplus(loads: _Loads, brokers: list[int], source: int, target: int) -> int:
    """Return how much should move from a broker with a high load to one with a lower load, at least 1.

    This is the smaller of what one has above the average and the other below. If racks keep both on one side of the
    average, it is a quarter of their difference, since several brokers share the surplus of one.
    """
    total = sum(loads[broker] for broker in brokers)
    above = loads[source] + -total // len(brokers)
    below = total // len(brokers) - loads[target]
    if above > 0 and below > 0:
        return min(above, below)
    return max((loads[source] - loads[target]) // 4, 1)


def balance_racks(table: ReplicaTable) -> bool:
    """Spread the replicas of each partition over the racks. Returns whether anything moved."""
    if len({table.racks[broker] for broker in table.accepting}) < 2:
        return False
    has_moved = False
    for partition, replicas in enumerate(table.replicas):
        if table.is_movable[partition]:
            while len({table.racks[broker] for broker in replicas}) < len(replicas) and _spread(table, partition):
                has_moved = True
    return has_moved


def _spread(table: ReplicaTable, partition: int) -> bool:
    """Move one replica to a rack that has at least two fewer of the partition. Returns False if there is none."""

    def in_rack(broker: int) -> int:
        return table.replicas_in_rack(partition, table.racks[broker])

    replicas = [broker for broker in table.replicas[partition] if table.accepts[broker]]
    target = table.best_broker(table.replicas[partition])
    if not replicas or target is None:
        return False
    source = max(replicas, key=lambda broker: (in_rack(broker), table.counts[broker], table.sizes[broker], -broker))
    if in_rack(source) - in_rack(target) < 2:
        return False
    table.move(partition, source, target)
    return True


def balance_counts(table: ReplicaTable) -> bool:
    """Give brokers equally many replicas. Returns whether anything moved."""
    return _even_out(table, table.counts, partial(_send, table))


def _send(table: ReplicaTable, source: int, target: int) -> bool:
    """Move as many replicas as one broker has too many and the other too few. Returns False if none can move.

    If the source stores more bytes than average, replicas of a size that removes its surplus are chosen, otherwise
    small ones: those whose sizes differ from it by the smallest factor of 2.
    """
    amount = _surplus(table.counts, table.accepting, source, target)
    excess_bytes = table.sizes[source] - sum(table.sizes[broker] for broker in table.accepting) // len(table.accepting)
    wanted = max(excess_bytes // amount, 0).bit_length()
    classes = {partition: table.partition_sizes[partition].bit_length() for partition in table.held[source]}
    moved = 0
    for partition in sorted(classes, key=lambda partition: (abs(classes[partition] - wanted), classes[partition])):
        if table.may_move(partition, source, target):
            table.move(partition, source, target)
            moved += 1
            if moved == amount:
                break
    return moved > 0


def balance_leaders(table: ReplicaTable) -> bool:
    """Make brokers the preferred leaders of equally many partitions, as equally as the given replicas allow.

    Only the order of replicas changes. Returns whether it has.
    """
    return _even_out(table, table.leaders, partial(_hand_over, table))


def _hand_over(table: ReplicaTable, source: int, target: int) -> bool:
    """Transfer preferred leadership of partitions. Returns False if that is impossible.

    All followers of a broker that leads too many may be on brokers that lead as many; these then transfer other
    partitions in turn, along the shortest path to the target.
    """
    path = _path(table, source, target)
    amount = min([_surplus(table.leaders, table.accepting, source, target), *(len(table.led[hop]) for hop in path)])
    # The last transfer first, so that no broker on the path transfers a partition that it has just received.
    for leader, follower in reversed(path):
        for partition in list(table.led[leader, follower])[:amount]:
            table.prefer(partition, follower)
    return bool(path)


def _path(table: ReplicaTable, source: int, target: int) -> list[tuple[int, int]]:
    """Return the shortest path of (leader, follower) between two brokers, [] if there is none."""
    paths = {source: [source]}
    reached = deque([source])
    while reached and target not in paths:
        leader = reached.popleft()
        for follower in table.accepting:
            if follower not in paths and table.led.get((leader, follower)):
                paths[follower] = [*paths[leader], follower]
                reached.append(follower)
    return list(pairwise(paths.get(target, ())))


def balance_bytes(table: ReplicaTable) -> bool:
    """Exchange large replicas for small ones, so that the numbers of replicas stay. Returns whether anything moved.

    Ends when all brokers are within BYTES_TOLERANCE of the average, or no exchange between two brokers helps. The
    difference of the two must exceed it as well: racks may keep all brokers of a rack above the average.
    """
    sizes = table.sizes
    average = sum(sizes[broker] for broker in table.accepting) // max(len(table.accepting), 1)
    low, high = average * (1 - BYTES_TOLERANCE), average * (1 + BYTES_TOLERANCE)

    def is_uneven(source: int, target: int) -> bool:
        is_outside = sizes[source] > high or sizes[target] < low
        return is_outside and sizes[source] - sizes[target] > average * BYTES_TOLERANCE

    return _even_out(table, sizes, partial(_exchange, table), is_uneven)


def _exchange(table: ReplicaTable, source: int, target: int) -> bool:
    """Move a replica from one broker to another, and a smaller one back. Returns False if none fit.

    Leaders are exchanged for leaders, followers for followers. Nothing has to move back if the source has one replica
    more than the target.
    """
    wanted = _surplus(table.sizes, table.accepting, source, target)
    # Each exchange moves at least this many bytes, which bounds their number by the number of replicas.
    least = max(wanted // (2 * table.counts[source] + 1), 1)
    most = table.sizes[source] - table.sizes[target] - 1
    for are_leaders in (False, True):
        sent, returned = _by_size(table, source, target, are_leaders), _by_size(table, target, source, are_leaders)
        has_one_more = table.counts[source] - table.counts[target] == 1 and (
            not are_leaders or table.leaders[source] - table.leaders[target] == 1
        )
        for returned_bytes, other in ([(0, None)] if has_one_more else []) + returned[:_TRIED]:
            # The largest up to the wanted size, then the smallest above it.
            end = bisect_right(sent, returned_bytes + wanted, key=lambda item: item[0])
            for size_bytes, partition in sent[max(end - _TRIED, 0) : end][::-1] + sent[end : end + _TRIED]:
                if partition is not None and least <= size_bytes - returned_bytes <= most:
                    table.move(partition, source, target)
                    if other is not None:
                        table.move(other, target, source)
                    return True
    return False


def _by_size(table: ReplicaTable, source: int, target: int, are_leaders: bool) -> list[tuple[int, int | None]]:
    """Return (size, partition) of the leaders or followers that may move from one broker to another, in this order."""
    movable = [
        (table.partition_sizes[partition], partition)
        for partition in table.held[source]
        if (table.replicas[partition][0] == source) == are_leaders and table.may_move(partition, source, target)
    ]
    return sorted(movable)


def balance_topic_leaders(table: ReplicaTable) -> bool:
    """Spread the leaders of each topic, since they carry its load. Returns whether anything changed.

    Only the order of replicas changes, and not how many partitions brokers lead in total.
    """
    leaders: dict[str, _Loads] = {}
    for part, replicas in zip(table.partitions, table.replicas, strict=True):
        leaders.setdefault(part.topic, [0] * len(table.ids))[replicas[0]] += 1
    changes = [_even_out(table, leaders[topic], partial(_swap, table, leaders, topic)) for topic in leaders]
    return any(changes)


def _swap(table: ReplicaTable, leaders: dict[str, _Loads], topic: str, source: int, target: int) -> bool:
    """Transfer preferred leadership of a partition of a topic. Returns False if that is impossible.

    If the totals of the two brokers would then differ more than before, a partition of another topic is transferred
    back, if that topic is spread no worse afterwards.
    """
    partitions = table.partitions
    sent = next((number for number in table.led.get((source, target), ()) if partitions[number].topic == topic), None)
    if sent is None:
        return False
    if table.leaders[source] <= table.leaders[target]:
        for other in table.led.get((target, source), ()):
            loads = leaders[partitions[other].topic]
            if loads[target] > loads[source]:
                break
        else:
            return False
        table.prefer(other, source)
        loads[target] -= 1
        loads[source] += 1
    table.prefer(sent, target)
    leaders[topic][source] -= 1
    leaders[topic][target] += 1
    return True


# In descending priority: no step undoes the result of an earlier one.
STEPS = (balance_racks, balance_counts, balance_leaders, balance_bytes, balance_topic_leaders)
