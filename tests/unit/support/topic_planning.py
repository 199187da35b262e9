"""Existing topics and a PlanningContext, for the controller's decisions about topics."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from kbroker.config.topic_config import validate_topic_configs
from kbroker.metadata.topics.replica_placement import PlanningContext

ID_1, ID_2, UNKNOWN_ID = b"1" * 16, b"2" * 16, b"\xff" * 16


@dataclass
class Partition:
    replicas: list[int]


@dataclass
class Topic:
    name: str
    topic_id: bytes
    partitions: list[Partition]

    @property
    def listed_partitions(self) -> int:
        return len(self.partitions)


TOPICS = {
    "t1": Topic("t1", ID_1, [Partition([1]) for _ in range(6)]),
    "t2": Topic("t2", ID_2, [Partition([1]) for _ in range(2)]),
}


def planning_context(
    racks: dict[int, str | None] | None = None, *, fenced: Iterable[int] = (), stopping: Iterable[int] = ()
) -> PlanningContext:
    """Return a cluster with the broker 1, or with the brokers of `racks`."""
    return PlanningContext(
        TOPICS, racks or {1: None}, Random(1), 4, 1, validate_topic_configs,
        fenced_brokers=frozenset(fenced), stopping_brokers=frozenset(stopping),
    )  # fmt: skip
