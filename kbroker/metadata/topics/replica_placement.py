"""Replica placement: leaders and followers are spread over the brokers, the replicas of a partition over racks."""

from collections.abc import Mapping
from random import Random

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

# The rack of each broker. Brokers without a rack count as one more rack.
Racks = Mapping[int, str | None]
NO_BROKER = "All brokers are currently fenced, or have all their log directories cordoned."


def no_leader(replication_factor: int) -> KafkaError:
    """Return the error for a partition whose brokers have all been fenced, or are shutting down."""
    return KafkaError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced or in "
        "controlled shutdown.",
    )


def place_replicas(
    count: int, replication_factor: int, racks: Racks, random: Random, fenced: Racks | None = None
) -> list[list[int]]:
    """Return the replicas of `count` new partitions, the preferred leader first.

    `racks` has the brokers that may get replicas, `fenced` those that get some if there are too few others: they follow
    when they return. The first broker is random, to spread topics with one partition. Raises KafkaError
    (INVALID_REPLICATION_FACTOR) if there are too few brokers.
    """
    fenced = fenced or {}
    if not racks:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): {NO_BROKER}",
        )
    registered = len(racks) + len(fenced)
    if replication_factor > registered:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {registered} broker(s) are registered or some "
            "brokers have all their log directories cordoned.",
        )
    from_fenced = max(0, replication_factor - len(racks))
    brokers = interleave_racks(racks)
    start = random.randrange(len(brokers))
    shift = random.randrange(len(brokers))
    others = interleave_racks(fenced)
    return [
        _replicas(
            brokers,
            racks,
            (start + index) % len(brokers),
            shift + (start + index) // len(brokers),
            replication_factor - from_fenced,
        )
        + [others[(index + number) % len(others)] for number in range(from_fenced)]
        for index in range(count)
    ]


def interleave_racks(racks: Racks) -> list[int]:
    """Order the brokers so that neighbours are in different racks if possible: one of each rack, then the next."""
    by_rack: dict[str | None, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack, key=lambda rack: (rack is None, rack or ""))]
    longest = max((len(queue) for queue in queues), default=0)
    return [queue[index] for index in range(longest) for queue in queues if index < len(queue)]


def _replicas(brokers: list[int], racks: Racks, leader: int, shift: int, replication_factor: int) -> list[int]:
    """Return the leader `brokers[leader]` and its followers, each in a rack with the fewest replicas so far.

    `shift` grows with each round over the brokers. It rotates the followers, so that when a broker fails, its load is
    spread over many others.
    """
    chosen = [brokers[leader]]
    if replication_factor <= 1:
        # Of thousands of partitions the candidates alone would take 20 ms.
        return chosen
    others = len(brokers) - 1
    candidates = [brokers[(leader + 1 + (shift + step) % others) % len(brokers)] for step in range(others)]
    replicas_in_rack = {racks[brokers[leader]]: 1}
    while len(chosen) < replication_factor:
        follower = min(candidates, key=lambda broker: replicas_in_rack.get(racks[broker], 0))
        candidates.remove(follower)
        chosen.append(follower)
        replicas_in_rack[racks[follower]] = replicas_in_rack.get(racks[follower], 0) + 1
    return chosen
