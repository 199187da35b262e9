"""The layout of a cluster's replicas: brokers with their racks, partitions with their replicas and sizes.

The goals of placement, in descending priority. No decision worsens an earlier goal for a later one.

1. No broker has two replicas of a partition. Every layout meets it.
2. The replicas of a partition are spread over the racks as evenly as possible.
3. Brokers have equally many replicas, and are the preferred leaders of equally many partitions.
4. Brokers store equally many bytes, within BYTES_TOLERANCE.
5. Of each topic, brokers are the preferred leaders of equally many partitions, as far as the order of replicas allows.

Goals 3 to 5 are about the brokers that accept replicas.

ReplicaTable is the layout as tables of integers, which decisions change replica by replica. Sums per broker are kept up
to date. Brokers and partitions are numbered from 0. Decisions consider partitions in a scattered order, so that those
that move to a new broker belong to all topics, and not only to the first ones by name.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

# Brokers whose bytes differ by less than this fraction of the average count as balanced: further moves would cost more
# than they gain.
BYTES_TOLERANCE = 0.1


class ClusterBroker(NamedTuple):
    """A broker that has replicas, or may get some.

    `accepts_replicas`: False for a broker that must not receive any, as it is fenced, cordoned or unknown. Brokers
    without a rack count as one more rack. `free_bytes`: the space that is left in its log directories, if known.
    `is_away`: whether the broker is known and fenced.
    """

    id: int
    rack: str | None = None
    accepts_replicas: bool = True
    free_bytes: int | None = None
    is_away: bool = False


class PlacedPartition(NamedTuple):
    """A partition with its replicas, the preferred leader first.

    A partition whose `leader` is None cannot be copied, so its replicas stay where they are. `size_bytes`: the size of
    one replica. `out_of_sync`: the replicas that are not in the ISR. A partition that is being reassigned appears with
    its target replicas, and does not move.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    leader: int | None
    size_bytes: int = 0
    out_of_sync: frozenset[int] = frozenset()
    is_reassigning: bool = False

    @property
    def is_movable(self) -> bool:
        return self.leader is not None and not self.is_reassigning

    @property
    def in_sync(self) -> int:
        """How many replicas are in sync."""
        return len(self.replicas) - len(self.out_of_sync)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ClusterLayout(NamedTuple):
    """Brokers by id, in the order of their ids, and partitions in the order of topic and partition."""

    brokers: Mapping[int, ClusterBroker]
    partitions: tuple[PlacedPartition, ...]


def cluster_layout(brokers: Iterable[ClusterBroker], partitions: Iterable[PlacedPartition]) -> ClusterLayout:
    """Return the layout of a cluster. A broker that is known only as a replica has no rack and accepts no replicas."""
    ordered = tuple(sorted(partitions, key=lambda partition: (partition.topic, partition.partition)))
    by_id = {broker_id: ClusterBroker(broker_id, None, False) for part in ordered for broker_id in part.replicas}
    by_id |= {broker.id: broker for broker in brokers}
    return ClusterLayout(dict(sorted(by_id.items())), ordered)


def with_replicas(layout: ClusterLayout, replicas: Mapping[tuple[str, int], tuple[int, ...]]) -> ClusterLayout:
    """Return the layout after some partitions, by topic and partition, got other replicas."""
    partitions = tuple(
        part._replace(replicas=replicas[part.topic, part.partition])
        if (part.topic, part.partition) in replicas
        else part
        for part in layout.partitions
    )
    return layout._replace(partitions=partitions)


class BrokerLoad(NamedTuple):
    """The load of a broker: replicas, partitions that it is the preferred leader of, and the bytes of its replicas."""

    replicas: int
    leaders: int
    size_bytes: int


class PlacementState(NamedTuple):
    """How well a layout meets the goals.

    `loads` by broker id. `rack_violations`: the partitions whose replicas could be spread better over the racks. The
    spreads are the differences between the highest and the lowest broker that accepts replicas.
    """

    loads: Mapping[int, BrokerLoad]
    rack_violations: int
    replica_spread: int
    leader_spread: int
    bytes_spread: int


def evaluate(layout: ClusterLayout) -> PlacementState:
    """Return how well a layout meets the goals."""
    replicas = dict.fromkeys(layout.brokers, 0)
    leaders = dict.fromkeys(layout.brokers, 0)
    sizes = dict.fromkeys(layout.brokers, 0)
    racks = RackSpread(layout.brokers.values())
    rack_of = {broker.id: broker.rack for broker in layout.brokers.values()}
    violations = 0
    for partition in layout.partitions:
        leaders[partition.replicas[0]] += 1
        for broker in partition.replicas:
            replicas[broker] += 1
            sizes[broker] += partition.size_bytes
        violations += racks.is_violated([rack_of[broker] for broker in partition.replicas])
    accepting = [broker.id for broker in layout.brokers.values() if broker.accepts_replicas]
    return PlacementState(
        {broker: BrokerLoad(replicas[broker], leaders[broker], sizes[broker]) for broker in layout.brokers},
        violations,
        *(_spread([counts[broker] for broker in accepting]) for counts in (replicas, leaders, sizes)),
    )


def _spread(values: list[int]) -> int:
    return max(values) - min(values) if values else 0


def rack_pairs(racks: Iterable[object]) -> int:
    """Return how many pairs of a partition's replicas share a rack: the measure of goal 2, lowest if spread evenly."""
    return sum(count * (count - 1) // 2 for count in Counter(racks).values())


def has_fewer_racks(original: Iterable[object], target: Iterable[object]) -> bool:
    """Return whether a change of replicas spreads a partition worse over the racks, given the rack of each replica.

    If the number of replicas grows, the best subset of the former size counts.
    """
    before, after = Counter(original), Counter(target)
    for _ in range(after.total() - before.total()):
        after[max(after, key=after.__getitem__)] -= 1
    return rack_pairs(after.elements()) > rack_pairs(before.elements())


class RackSpread:
    """Computes how well replicas can be spread over the racks of the brokers that accept replicas."""

    def __init__(self, brokers: Iterable[ClusterBroker]) -> None:
        self._brokers_in_rack = Counter(broker.rack for broker in brokers if broker.accepts_replicas)
        self._fewest_pairs: dict[int, int] = {}

    def is_violated(self, racks: list[str | None]) -> bool:
        """Return whether replicas in these racks, one entry for each replica, could be spread better."""
        if len(set(racks)) == len(racks):
            return False
        return rack_pairs(racks) > self.fewest_pairs(len(racks))

    def fewest_pairs(self, replication_factor: int) -> int:
        """Return the rack_pairs of a partition whose replicas are spread best."""
        if replication_factor not in self._fewest_pairs:
            # Each replica goes to the rack with the fewest, among those that have a broker without one.
            placed: Counter[str | None] = Counter()
            for _ in range(replication_factor):
                open_racks = [rack for rack, brokers in self._brokers_in_rack.items() if placed[rack] < brokers]
                if not open_racks:
                    # Some replicas are on brokers that accept none: no better spread is known.
                    return replication_factor * replication_factor
                placed[min(open_racks, key=placed.__getitem__)] += 1
            self._fewest_pairs[replication_factor] = rack_pairs(placed.elements())
        return self._fewest_pairs[replication_factor]


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
