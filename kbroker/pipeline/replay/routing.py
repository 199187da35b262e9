"""Which partition of which topic each record of an archive goes to. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.encoding import Target

if TYPE_CHECKING:
    from pyspark.sql import Column

_M = 0x5BD1E995
_SEED = 0x9747B28C
_U32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Routing:
    """`names`: source topic to target topic. `partitions`: of each target topic. Targets are numbered from 0 on, topic
    by topic and partition by partition."""

    names: Mapping[str, str]
    partitions: Mapping[str, int]
    by_key: bool = False
    _bases: dict[str, int] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        base = 0
        for topic, count in self.partitions.items():
            self._bases[topic] = base
            base += count

    @property
    def targets(self) -> list[Target]:
        """By their numbers."""
        return [Target(topic, number) for topic, count in self.partitions.items() for number in range(count)]

    def base(self, source: str) -> int:
        """The number of the first target of a source topic."""
        return self._bases[self.names[source]]

    def width(self, source: str) -> int:
        return self.partitions[self.names[source]]

    def fed_by(self, source: TopicPartition) -> range:
        """The numbers of the targets that records of a source partition can go to; none where it has no
        counterpart."""
        base = self.base(source.topic)
        if self.by_key:
            return range(base, base + self.width(source.topic))
        return range(base, base + self.width(source.topic))[source.partition : source.partition + 1]

    def check(self, sources: Iterable[TopicPartition]) -> None:
        """Raises PipelineError where a source partition has no counterpart."""
        for topic, partition in sources:
            if not self.by_key and partition >= self.width(topic):
                target = self.names[topic]
                raise PipelineError(
                    f"topic {target} has {_partitions(self.partitions[target])}, but records of {topic}-{partition} "
                    f"are to be replayed: give it more partitions, or use --partitions-by key"
                )

    def merges(self, sources: Iterable[TopicPartition]) -> bool:
        """Whether records of several source partitions can meet in one target."""
        seen: set[int] = set()
        for source in sources:
            fed = set(self.fed_by(source))
            if fed & seen:
                return True
            seen |= fed
        return False

    def column(self) -> "Column":
        """The number of the target, from the columns topic, partition and key."""
        from pyspark.sql import functions as f

        bases = self._case({source: self.base(source) for source in self.names})
        if not self.by_key:
            return (bases + f.col("partition")).cast("int")
        widths = self._case({source: self.width(source) for source in self.names})
        hashed = f.udf(_hashed, "int")(f.col("key"))
        within = f.coalesce(hashed, f.col("partition")) % widths
        return (bases + within).cast("int")

    def _case(self, numbers: Mapping[str, int]) -> "Column":
        from pyspark.sql import functions as f

        (_, last), *others = sorted(numbers.items(), reverse=True)
        found = f.lit(last)
        for source, number in others:
            found = f.when(f.col("topic") == source, f.lit(number)).otherwise(found)
        return found


def target_names(topics: Iterable[str], to: str | None, prefix: str | None) -> dict[str, str]:
    """Source topic to target topic."""
    return {topic: to if to is not None else f"{prefix or ''}{topic}" for topic in topics}


def spread(counts: Mapping[int, int], tasks: int) -> dict[int, int]:
    """Targets over so many tasks, by what each has to send: the largest first, to the task that has the least."""
    loads = [0] * tasks
    placed = {}
    for target, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        task = loads.index(min(loads))
        loads[task] += count
        placed[target] = task
    return placed


def murmur2(data: bytes) -> int:
    """The hash of Kafka's default partitioner, 32 bits without a sign."""
    size = len(data)
    found = _SEED ^ size
    end = size & ~3
    for word in _words(data, end):
        word = word * _M & _U32
        word = (word ^ word >> 24) * _M & _U32
        found = found * _M & _U32 ^ word
    if size > end:
        found = (found ^ int.from_bytes(data[end:], "little")) * _M & _U32
    found = (found ^ found >> 13) * _M & _U32
    return found ^ found >> 15


def _words(data: bytes, end: int) -> Iterator[int]:
    view = memoryview(data)[:end]
    return (int.from_bytes(view[pos : pos + 4], "little") for pos in range(0, end, 4))


def _hashed(key: "bytes | bytearray | None") -> int | None:
    """Which partition a key belongs to, before it is divided by their number; None without a key."""
    return None if key is None else murmur2(bytes(key)) & 0x7FFFFFFF


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
