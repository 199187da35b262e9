"""Replica placement: leaders and followers are spread over the brokers, the replicas of a partition over racks.

PlanningContext is the state on which decisions about topics depend. Replica assignments in requests are validated here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from kbroker.common import KafkaError
from kbroker.metadata.image import TopicImage
from protocol.errors import ErrorCode

# The rack of each broker. Brokers without a rack count as one more rack.
Racks = Mapping[int, str | None]
NO_BROKER = "All brokers are currently fenced, or have all their log directories cordoned."
MAX_PARTITIONS_PER_REQUEST = 10_000


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


@dataclass(slots=True)
class PlanningContext:
    """`validate_configs` raises KafkaError for invalid topic configs.

    `racks` has all registered brokers. `cordoned_brokers` get new replicas only through assignments in requests
    (KIP-1066). `fenced_brokers` are not running: they get replicas if there are too few others, and do not lead.
    `stopping_brokers` are in controlled shutdown, and do not lead either. `failing_brokers` cannot write to their
    disks: they get replicas if there are too few others, and lead only if nobody else can.
    """

    topics: Mapping[str, TopicImage]
    racks: Racks
    random: Random
    default_partitions: int
    default_replication_factor: int
    validate_configs: Callable[[Mapping[str, str]], None]
    cordoned_brokers: frozenset[int] = frozenset()
    fenced_brokers: frozenset[int] = frozenset()
    stopping_brokers: frozenset[int] = frozenset()
    failing_brokers: frozenset[int] = frozenset()

    @property
    def uncordoned_racks(self) -> Racks:
        return {broker: rack for broker, rack in self.racks.items() if broker not in self.cordoned_brokers}

    def place(self, count: int, replication_factor: int) -> list[list[int]]:
        """Place the replicas of new partitions. Raises KafkaError (INVALID_REPLICATION_FACTOR)."""
        uncordoned = self.uncordoned_racks
        running = {broker: rack for broker, rack in uncordoned.items() if broker not in self.fenced_brokers}
        able = {broker: rack for broker, rack in running.items() if broker not in self.failing_brokers} or running
        others = {broker: rack for broker, rack in uncordoned.items() if broker not in able}
        return place_replicas(count, replication_factor, able, self.random, others)


def validate_replicas(replicas: Sequence[int], racks: Racks, replication_factor: int | None) -> None:
    """Validate the replicas of one partition; `replication_factor` is their required number, None for any.

    Raises KafkaError (INVALID_REPLICA_ASSIGNMENT).
    """
    if not replicas:
        raise invalid_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker in sorted(replicas):
        if broker not in racks:
            raise invalid_assignment(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker == previous:
            raise invalid_assignment(f"The manual partition assignment includes the broker {broker} more than once.")
        previous = broker
    if replication_factor is not None and len(replicas) != replication_factor:
        raise invalid_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
            f"but this is not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def check_leader(partition: int, replicas: Sequence[int], context: PlanningContext) -> None:
    """Raise KafkaError (INVALID_REPLICA_ASSIGNMENT) if no broker of a new partition can lead it."""
    if all(broker in context.fenced_brokers or broker in context.stopping_brokers for broker in replicas):
        raise invalid_assignment(
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in "
            "controlled shutdown."
        )


def invalid_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
