"""Maps each archived record to its target partition, also as a Spark column."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import functions as f
from protocol.murmur2 import murmur2

if TYPE_CHECKING:
    from pyspark.sql import Column


def hash_key(key: bytes | bytearray | None) -> int | None:
    """Return the number whose remainder by the partition count is the key's partition; None without a key."""
    return None if key is None else murmur2(bytes(key)) & 0x7FFFFFFF


@dataclass(frozen=True)
class Routing:
    """The rule from source to target partitions.

    Target partitions are numbered from 0, topic by topic; `targets` lists them by number.
    """

    names: Mapping[str, str]  # source topic to target topic
    partitions: Mapping[str, int]  # target topic to its partition count
    by_key: bool = False  # by Kafka's default partitioner, instead of to the same partition
    _first_numbers: dict[str, int] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        number = 0
        for topic, count in self.partitions.items():
            self._first_numbers[topic] = number
            number += count

    @property
    def targets(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self.partitions.items() for number in range(count)]

    def targets_of(self, source: TopicPartition) -> range:
        """Return the numbers of all targets that records of a source partition can go to; empty if it has none."""
        first = self._first_number(source.topic)
        numbers = range(first, first + self._partition_count(source.topic))
        return numbers if self.by_key else numbers[source.partition : source.partition + 1]

    def check(self, sources: Iterable[TopicPartition]) -> None:
        """Raise PipelineError for a source partition without a target."""
        for source in sources:
            count = self._partition_count(source.topic)
            if not self.by_key and source.partition >= count:
                partitions = "1 partition" if count == 1 else f"{count} partitions"
                raise PipelineError(
                    f"topic {self.names[source.topic]} has {partitions}, but {source} has records to replay: add "
                    f"partitions to the topic, or use --partitions-by key"
                )

    def merges(self, sources: Iterable[TopicPartition]) -> bool:
        """Return whether records of two source partitions can go to the same target."""
        used: set[int] = set()
        for source in sources:
            targets = set(self.targets_of(source))
            if targets & used:
                return True
            used |= targets
        return False

    def target_column(self) -> "Column":
        """Return the target's number, computed from the columns topic, partition and key."""
        first_number = self._by_topic(self._first_number)
        if not self.by_key:
            return (first_number + f.col("partition")).cast("int")
        hashed = f.coalesce(f.udf(hash_key, "int")(f.col("key")), f.col("partition"))
        return (first_number + hashed % self._by_topic(self._partition_count)).cast("int")

    def _first_number(self, source_topic: str) -> int:
        return self._first_numbers[self.names[source_topic]]

    def _partition_count(self, source_topic: str) -> int:
        return self.partitions[self.names[source_topic]]

    def _by_topic(self, number: Callable[[str], int]) -> "Column":
        first, *others = sorted(self.names)
        column = f.lit(number(first))
        for topic in others:
            column = f.when(f.col("topic") == topic, f.lit(number(topic))).otherwise(column)
        return column


def target_names(topics: Iterable[str], to: str | None, prefix: str | None) -> dict[str, str]:
    """Return the target topic of each source topic: `to`, or its own name with an optional prefix."""
    return {topic: to if to is not None else f"{prefix or ''}{topic}" for topic in topics}


def assign_to_tasks(counts: Mapping[int, int], task_count: int) -> dict[int, int]:
    """Assign targets to tasks by their record counts: the largest first, each to the task with the fewest records."""
    loads = [0] * task_count
    assigned = {}
    for target, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        task = loads.index(min(loads))
        loads[task] += count
        assigned[target] = task
    return assigned
