"""Which brokers hold a new partition: leaders and replicas spread over brokers, replicas over racks."""

from collections.abc import Mapping
from random import Random

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

Racks = Mapping[int, str | None]
NO_BROKER = "All brokers are currently fenced, or have all their log directories cordoned."


def place_replicas(count: int, replication_factor: int, racks: Racks, random: Random) -> list[list[int]]:
    """Replica lists, preferred leader first, for `count` new partitions.

    `racks` maps each broker that may take replicas to its rack; brokers without one count as one more rack.
    The start is random, so that topics of one partition do not all land on the first broker. Raises
    KafkaError (INVALID_REPLICATION_FACTOR) when there are too few brokers.
    """
    if not racks:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {NO_BROKER}",
        )
    if replication_factor > len(racks):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(racks)} broker(s) are registered or some "
            "brokers have all their log directories cordoned.",
        )
    order = interleave_racks(racks)
    start = random.randrange(len(order))
    shift = random.randrange(len(order))
    return [
        _replicas(
            order,
            racks,
            (start + index) % len(order),
            shift + (start + index) // len(order),
            replication_factor,
        )
        for index in range(count)
    ]


def interleave_racks(racks: Racks) -> list[int]:
    """The brokers with neighbours in different racks where possible: one of each rack, then the next of
    each.
    """
    by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack, key=lambda rack: (rack is None, rack or ""))]
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _replicas(order: list[int], racks: Racks, leader: int, shift: int, replication_factor: int) -> list[int]:
    """The leader and its followers; each follower goes to a rack that has the fewest replicas so far.

    `shift` moves the followers on with every round over the brokers, so that the load of one broker that
    fails is taken by many.
    """
    chosen = [order[leader]]
    others = len(order) - 1
    candidates = [order[(leader + 1 + (shift + step) % others) % len(order)] for step in range(others)]
    load = {racks[order[leader]]: 1}
    while len(chosen) < replication_factor:
        best = min(candidates, key=lambda broker: load.get(racks[broker], 0))
        candidates.remove(best)
        chosen.append(best)
        load[racks[best]] = load.get(racks[best], 0) + 1
    return chosen
