"""Balances racks, then replicas: spreads partitions over racks, then gives brokers equally many replicas.

Every move improves its goal and worsens no earlier one, so both searches end.
"""

from collections.abc import Iterator

from kbroker.metadata.topics.placement.replica_table import ReplicaTable


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
