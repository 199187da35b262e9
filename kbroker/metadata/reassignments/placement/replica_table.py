"""The layout as tables of integers, which decisions change replica by replica. Sums per broker are kept up to date.

Brokers and partitions are numbered from 0. Decisions consider partitions in a scattered order, so that those that move
to a new broker belong to all topics, and not only to the first ones by name.
"""

from collections import defaultdict
from collections.abc import Sequence

from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, ClusterLayout

# 2**32 divided by the golden ratio: its multiples modulo 2**32 are spread evenly.
_SCATTER = 2654435769


class ReplicaTable:
    """Replicas of partitions by number, and what each broker has.

    `racks`, `accepts`, `counts`, `leaders` and `sizes` are by the number of a broker, `replicas` and `partition_sizes`
    by that of a partition. `is_movable`: see PlacedPartition. `held`: the partitions of each broker. `led`: the movable
    partitions by leader and follower, where both accept replicas.
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
        self.held: list[dict[int, None]] = [{} for _ in self.ids]
        self.led: defaultdict[tuple[int, int], dict[int, None]] = defaultdict(dict)
        for partition in range(len(self.partitions)):
            self._enter(partition)

    def _enter(self, partition: int) -> None:
        """Add the replicas of a partition to what the brokers have."""
        leader, *followers = self.replicas[partition]
        self.leaders[leader] += 1
        for broker in (leader, *followers):
            self.counts[broker] += 1
            self.sizes[broker] += self.partition_sizes[partition]
            self.held[broker][partition] = None
        for pair in self._transfers(partition):
            self.led[pair][partition] = None

    def _leave(self, partition: int) -> None:
        """The inverse of _enter."""
        replicas = self.replicas[partition]
        self.leaders[replicas[0]] -= 1
        for broker in replicas:
            self.counts[broker] -= 1
            self.sizes[broker] -= self.partition_sizes[partition]
            del self.held[broker][partition]
        for pair in self._transfers(partition):
            del self.led[pair][partition]

    def _transfers(self, partition: int) -> list[tuple[int, int]]:
        leader, *followers = self.replicas[partition]
        if not self.is_movable[partition] or not self.accepts[leader]:
            return []
        return [(leader, follower) for follower in followers if self.accepts[follower]]

    def result(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return the replicas of all partitions by topic and partition."""
        return {
            (part.topic, part.partition): tuple(self.ids[broker] for broker in replicas)
            for part, replicas in zip(self.partitions, self.replicas, strict=True)
        }

    def move(self, partition: int, source: int, target: int) -> None:
        """Replace the broker `source` among the replicas of a partition by `target`, in the same place."""
        self._replace(partition, [target if broker == source else broker for broker in self.replicas[partition]])

    def add(self, partition: int, broker: int) -> None:
        """Add a broker as the last of the replicas of a partition."""
        self._replace(partition, [*self.replicas[partition], broker])

    def remove(self, partition: int, broker: int) -> None:
        """Remove a broker from the replicas of a partition, which has others."""
        if self.replicas[partition][0] == broker:
            self.prefer(partition, self.replicas[partition][1])
        self._replace(partition, [other for other in self.replicas[partition] if other != broker])

    def prefer(self, partition: int, broker: int) -> None:
        """Make one of the replicas of a partition its preferred leader. The former one takes its place."""
        replicas = list(self.replicas[partition])
        place = replicas.index(broker)
        replicas[0], replicas[place] = broker, replicas[0]
        self._replace(partition, replicas)

    def _replace(self, partition: int, replicas: list[int]) -> None:
        self._leave(partition)
        self.replicas[partition][:] = replicas
        self._enter(partition)

    def replicas_in_rack(self, partition: int, rack: int) -> int:
        racks = self.racks
        return sum([racks[broker] == rack for broker in self.replicas[partition]])

    def keeps_racks(self, partition: int, source: int, target: int) -> bool:
        """Return whether a move leaves a partition spread over the racks at least as well as before."""
        rack, target_rack = self.racks[source], self.racks[target]
        if rack == target_rack:
            return True
        return self.replicas_in_rack(partition, target_rack) < self.replicas_in_rack(partition, rack)

    def may_move(self, partition: int, source: int, target: int) -> bool:
        """Return whether a replica may move without a worse spread over the racks."""
        return (
            self.is_movable[partition]
            and target not in self.replicas[partition]
            and self.keeps_racks(partition, source, target)
        )

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
