"""The layout as tables of integers, which decisions change replica by replica. Sums per broker are kept up to date.

Brokers and partitions are numbered from 0. Decisions consider partitions in a scattered order, so that those that move
to a new broker belong to all topics, and not only to the first ones by name.
"""

from collections.abc import Sequence

from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, ClusterLayout

# 2**32 divided by the golden ratio: its multiples modulo 2**32 are spread evenly.
_SCATTER = 2654435769


class ReplicaTable:
    """Replicas of partitions by number, and what each broker has.

    `racks`, `accepts`, `counts`, `leaders` and `sizes` are by the number of a broker, `replicas` and `partition_sizes`
    by that of a partition. `is_movable`: see PlacedPartition.
    """

    def __init__(self, layout: ClusterLayout) -> None:
        self.ids = list(layout.brokers)
        number_of = {broker: number for number, broker in enumerate(self.ids)}
        brokers: Sequence[ClusterBroker] = list(layout.brokers.values())
        rack_names = list(dict.fromkeys(broker.rack for broker in brokers))
        self.racks = [rack_names.index(broker.rack) for broker in brokers]
        self.accepts = [broker.accepts_replicas for broker in brokers]
        self.accepting = [number for number, accepts in enumerate(self.accepts) if accepts]
        scattered = sorted(range(len(layout.partitions)), key=lambda index: index * _SCATTER % 2**32)
        self.partitions = [layout.partitions[index] for index in scattered]
        self.replicas = [[number_of[broker] for broker in part.replicas] for part in self.partitions]
        self.partition_sizes = [part.size_bytes for part in self.partitions]
        self.is_movable = [part.is_movable for part in self.partitions]
        self.counts = [0] * len(self.ids)
        self.leaders = [0] * len(self.ids)
        self.sizes = [0] * len(self.ids)
        for replicas, size_bytes in zip(self.replicas, self.partition_sizes, strict=True):
            self.leaders[replicas[0]] += 1
            for broker in replicas:
                self.counts[broker] += 1
                self.sizes[broker] += size_bytes

    def result(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return the replicas of all partitions by topic and partition."""
        return {
            (part.topic, part.partition): tuple(self.ids[broker] for broker in replicas)
            for part, replicas in zip(self.partitions, self.replicas, strict=True)
        }

    def move(self, partition: int, source: int, target: int) -> None:
        """Replace the broker `source` among the replicas of a partition by `target`, in the same place."""
        replicas = self.replicas[partition]
        place = replicas.index(source)
        replicas[place] = target
        self._count(source, partition, -1)
        self._count(target, partition, 1)
        if place == 0:
            self.leaders[source] -= 1
            self.leaders[target] += 1

    def add(self, partition: int, broker: int) -> None:
        """Add a broker as the last of the replicas of a partition."""
        self.replicas[partition].append(broker)
        self._count(broker, partition, 1)

    def remove(self, partition: int, broker: int) -> None:
        """Remove a broker from the replicas of a partition, which has others."""
        replicas = self.replicas[partition]
        if replicas[0] == broker:
            self.prefer(partition, replicas[1])
        replicas.remove(broker)
        self._count(broker, partition, -1)

    def prefer(self, partition: int, broker: int) -> None:
        """Make one of the replicas of a partition its preferred leader. The former one takes its place."""
        replicas = self.replicas[partition]
        place = replicas.index(broker)
        self.leaders[replicas[0]] -= 1
        self.leaders[broker] += 1
        replicas[0], replicas[place] = broker, replicas[0]

    def _count(self, broker: int, partition: int, change: int) -> None:
        self.counts[broker] += change
        self.sizes[broker] += change * self.partition_sizes[partition]

    def replicas_in_rack(self, partition: int, rack: int) -> int:
        racks = self.racks
        return sum([racks[broker] == rack for broker in self.replicas[partition]])

    def keeps_racks(self, partition: int, source: int, target: int) -> bool:
        """Return whether a move leaves a partition spread over the racks at least as well as before."""
        rack, target_rack = self.racks[source], self.racks[target]
        if rack == target_rack:
            return True
        return self.replicas_in_rack(partition, target_rack) < self.replicas_in_rack(partition, rack)

    def best_broker(self, replicas: list[int], excluded: frozenset[int] = frozenset()) -> int | None:
        """Return the broker that should get a further replica of a partition with these ones, None if no broker can.

        It is in a rack with the fewest of the replicas, and has the fewest replicas, then bytes, of the brokers there.
        """
        racks, counts, sizes = self.racks, self.counts, self.sizes
        in_rack: dict[int, int] = {}
        for broker in replicas:
            in_rack[racks[broker]] = in_rack.get(racks[broker], 0) + 1
        best, best_key = None, (0, 0, 0)
        for broker in self.accepting:
            key = (in_rack.get(racks[broker], 0), counts[broker], sizes[broker])
            if (best is None or key < best_key) and broker not in replicas and broker not in excluded:
                best, best_key = broker, key
        return best
