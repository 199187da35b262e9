"""Balances bytes: exchanges large replicas for small ones, so that the numbers of replicas stay equal."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice

from kbroker.metadata.topics.placement.balance_replicas import surplus
from kbroker.metadata.topics.placement.placement_goals import BYTES_TOLERANCE
from kbroker.metadata.topics.placement.replica_table import ReplicaTable

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
    if _next_pair(table, blocked) is None:
        return False
    exchanges = _Exchanges(table)
    has_moved = False
    while pair := _next_pair(table, blocked):
        if exchanges.exchange(*pair):
            has_moved = True
        else:
            blocked.add(pair)
    return has_moved


def _next_pair(table: ReplicaTable, blocked: set[tuple[int, int]]) -> tuple[int, int] | None:
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
