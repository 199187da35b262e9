"""The state on which the controller's decisions about topics depend: brokers, existing topics and configs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from kbroker.metadata.topics.replica_placement import Racks, place_replicas

MAX_PARTITIONS_PER_REQUEST = 10_000


class ExistingTopic(Protocol):
    """The attributes of a TopicImage that decisions use."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def internal(self) -> bool: ...
    @property
    def view_of(self) -> str: ...
    @property
    def partitions(self) -> Sequence["ExistingPartition"]: ...
    @property
    def listed_partitions(self) -> int: ...


class ExistingPartition(Protocol):
    @property
    def replicas(self) -> Sequence[int]: ...


@dataclass(slots=True)
class PlanningContext:
    """`validate_configs` raises KafkaError for invalid topic configs.

    `racks` has all registered brokers. `cordoned_brokers` get new replicas only through assignments in requests
    (KIP-1066). `fenced_brokers` are not running: they get replicas if there are too few others, and do not lead.
    `stopping_brokers` are in controlled shutdown, and do not lead either. `failing_brokers` cannot write to their
    disks: they get replicas if there are too few others, and lead only if nobody else can.
    """

    topics: Mapping[str, ExistingTopic]
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
