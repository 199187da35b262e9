"""Which partitions of a coordinator's topic are this broker's: taken over, loaded, given up.

What a coordinator keeps (a group, a transactional id) lives in the partition that its id hashes to, on the broker
that leads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.runtime.coordinator_context import Status
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode, MalformedError

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext
    from kbroker.metadata.image import MetadataDelta, MetadataImage
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.coordinator")

# After a partition could not be read.
LOAD_AGAIN_S = 5.0


def java_hash(text: str) -> int:
    """String.hashCode of Java, without its sign: which partition an id has must not depend on the broker."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for pos in range(0, len(units), 2):
        value = (31 * value + (units[pos] << 8 | units[pos + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class Shard(Protocol):
    """What is kept of one partition."""

    # The partition's leader epoch, which is the coordinator's.
    epoch: int

    @property
    def runtime(self) -> CoordinatorContext[Any]: ...

    def start(self) -> None:
        """Loading is done."""
        ...


S = TypeVar("S", bound="Shard")
T = TypeVar("T")


def inactive(shard: Shard) -> ErrorCode:
    """Why nothing may be asked of it; NONE when it may."""
    status = shard.runtime.status
    if status is Status.LOADING:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return ErrorCode.NOT_COORDINATOR if status is Status.CLOSED else ErrorCode.NONE


def answer_to(future: Future[T], value: T) -> None:
    """The one who asked may be gone: a closed connection cancels its request."""
    if not future.done():
        future.set_result(value)


class CoordinatorRuntime(Generic[S]):
    """The shards of the partitions that this broker leads."""

    def __init__(
        self,
        environment: Environment,
        metadata: MetadataImage,
        topic: str,
        node_id: Callable[[], int],
        count: Callable[[], int],
        make: Callable[[TopicPartition, int], S],
    ) -> None:
        """`count`: how many partitions the topic will have; asked while it does not exist. `make` is given the leader
        epoch."""
        self._environment = environment
        self._metadata = metadata
        self._topic = topic
        self._node_id = node_id
        self._count = count
        self._make = make
        self._shards: dict[int, S] = {}
        self._loads: dict[int, Task[None]] = {}
        # Partitions of which the log has said that they cannot be loaded.
        self._unloaded: dict[int, None] = {}

    def partition_for(self, key: str) -> int:
        """The partition that an id belongs to."""
        topic = self._metadata.topics.get(self._topic)
        return java_hash(key) % (len(topic.partitions) if topic is not None else self._count())

    def active(self, key: str) -> S:
        """Who keeps an id. Raises KafkaError when that is not this broker, or not yet."""
        shard = self._shards.get(self.partition_for(key))
        error = ErrorCode.NOT_COORDINATOR if shard is None else inactive(shard)
        if shard is None or error is not ErrorCode.NONE:
            raise KafkaError(error)
        return shard

    def at(self, index: int) -> S | None:
        """Of a partition, if this broker leads it."""
        return self._shards.get(index)

    def all(self) -> list[S]:
        return list(self._shards.values())

    def start(self) -> None:
        """Take over what this broker leads."""
        for tp, image in self._metadata.partitions():
            if tp.topic == self._topic and image.leader == self._node_id():
                self._take_over(tp, image.leader_epoch)

    def stop(self) -> None:
        for index in list(self._shards):
            self._give_up(index)

    def on_delta(self, delta: MetadataDelta) -> None:
        """Follow leaders and deletions. Loading goes on after this returns."""
        for change in delta.partitions:
            if change.tp.topic != self._topic:
                continue
            shard = self._shards.get(change.tp.partition)
            if change.new is None or change.new.leader != self._node_id():
                self._give_up(change.tp.partition)
            elif shard is None:
                self._take_over(change.tp, change.new.leader_epoch)
            else:
                shard.epoch = change.new.leader_epoch

    def _take_over(self, tp: TopicPartition, epoch: int) -> None:
        shard = self._shards[tp.partition] = self._make(tp, epoch)
        self._loads[tp.partition] = self._environment.loop.create_task(self._load(shard))

    async def _load(self, shard: S) -> None:
        tp = shard.runtime.tp
        try:
            await shard.runtime.load()
        except KafkaError as error:
            if tp.partition not in self._unloaded:
                self._unloaded[tp.partition] = None
                log.error("a coordinator's partition cannot be loaded", partition=tp, reason=error)
            shard.runtime.close(error.code)
            if not isinstance(error.__cause__, MalformedError):
                self._environment.loop.call_later(LOAD_AGAIN_S, self._load_again, shard)
        else:
            self._unloaded.pop(tp.partition, None)
            shard.start()

    def _load_again(self, shard: S) -> None:
        """The log may have been opened meanwhile."""
        if self._shards.get(shard.runtime.tp.partition) is shard:
            self._take_over(shard.runtime.tp, shard.epoch)

    def _give_up(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        self._loads.pop(index, None)
        if shard is not None:
            shard.runtime.close(ErrorCode.NOT_COORDINATOR)

    async def loaded(self, key: str) -> None:
        """Returns when an id's partition is loaded, if it is ours."""
        load = self._loads.get(self.partition_for(key))
        if load is not None:
            await load
