"""The partitions of one internal topic that this broker leads: it loads them, and finds them by key.

A key (a group id, a transactional id) belongs to the partition that it hashes to. Its coordinator is the broker that
leads this partition.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.java_hash import former_key_hash, key_hash
from kbroker.coordinator.runtime.coordinator_context import ACTIVE, CoordinatorContext, CoordinatorState, RuntimeConfig
from kbroker.coordinator.runtime.loader import LeadershipEnded
from kbroker.coordinator.runtime.operation import CoordinatorShard
from kbroker.coordinator.runtime.write_event import complete
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from protocol.errors import ErrorCode, MalformedError

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.config import BrokerConfig
    from kbroker.coordinator.internal_log import InternalLog
    from kbroker.metadata.image import MetadataDelta, MetadataImage
    from kbroker.runtime.environment import Environment
    from kbroker.storage.producers.transactions import TransactionMarker

S = TypeVar("S", bound=CoordinatorShard)
log = EventLogger("kbroker.coordinator")

RELOAD_DELAY_S = 5.0
# A client that gets COORDINATOR_LOAD_IN_PROGRESS retries, so waiting longer would not help it.
MAX_LOAD_WAIT_S = 2.0


class CoordinatorRuntime(Generic[S]):
    """Finds the context of a key, and follows elections."""

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        metadata: MetadataImage,
        topic: str,
        config: Callable[[], RuntimeConfig],
        make_shard: Callable[[CoordinatorContext[S]], S],
    ) -> None:
        self._environment = environment
        self._log = internal_log
        self._metadata = metadata
        self._topic = topic
        self._config = config
        self._make_shard = make_shard
        self._contexts: dict[int, CoordinatorContext[S]] = {}
        self._loads: dict[int, Task[None]] = {}
        # Partitions whose failure to load has been logged.
        self._failed: set[int] = set()

    def partition_for(self, key: str) -> int:
        """Return the partition that a key belongs to."""
        topic = self._metadata.topics.get(self._topic)
        if topic is None:
            return key_hash(key) % self._config().partition_count
        return (key_hash(key) if topic.has_kafka_key_hash else former_key_hash(key)) % len(topic.partitions)

    def context(self, key: str) -> CoordinatorContext[S]:
        """Return the loaded partition of a key. Raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        context = self._contexts.get(self.partition_for(key))
        if context is not None:
            if context.state is ACTIVE:
                return context
            if context.state is CoordinatorState.LOADING:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def complete_transaction(
        self, tp: TopicPartition, marker: TransactionMarker, on_completed: Callable[[ErrorCode], None]
    ) -> None:
        """Append a transaction marker to a partition and replay it. The errors are those of any other partition."""
        context = self._contexts.get(tp.partition)
        if context is not None:
            context.complete_transaction(marker, on_completed)
        elif self._metadata.partition(*tp) is None:
            on_completed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            on_completed(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def contexts(self) -> list[CoordinatorContext[S]]:
        """Return all partitions of this broker, in any state."""
        return list(self._contexts.values())

    def loaded_shards(self) -> list[S]:
        """Return the state of all partitions. Raises COORDINATOR_LOAD_IN_PROGRESS while one is loading."""
        if any(context.state is CoordinatorState.LOADING for context in self._contexts.values()):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return [context.shard for context in self._contexts.values()]

    # Elections.

    def start(self) -> None:
        """Load the partitions that this broker leads."""
        for tp, registration in self._metadata.partitions():
            if tp.topic == self._topic and registration.leader == self._config().node_id:
                self._load_epoch(tp, registration.leader_epoch)

    def resign(self) -> None:
        """Unload all partitions: waiting requests fail with NOT_COORDINATOR. Later deltas may elect this broker."""
        for partition in list(self._contexts):
            self._resign(partition)

    def on_delta(self, delta: MetadataDelta) -> None:
        """Follow elections and deletions, in the same iteration of the event loop in which the image changes.

        A partition is loaded again in every new leader epoch. Loading continues in the background.
        """
        changes = [change for change in delta.partitions if change.tp.topic == self._topic]
        # A topic that is deleted and created again has two changes of each partition, in any order.
        for change in changes:
            if change.new is None or change.new.leader != self._config().node_id:
                self._resign(change.tp.partition)
        for change in changes:
            if change.new is not None and change.new.leader == self._config().node_id:
                self._load_epoch(change.tp, change.new.leader_epoch)

    def is_loading(self, keys: Iterable[str]) -> bool:
        """Return whether this broker is loading the partition of one of the keys."""
        loads = self._loads
        return bool(loads) and any(
            (load := loads.get(self.partition_for(key))) is not None and not load.done() for key in keys
        )

    async def wait_until_loaded(self, *keys: str) -> None:
        """Wait until the partitions of keys that this broker leads are loaded, but at most MAX_LOAD_WAIT_S."""
        loads = {self._loads.get(self.partition_for(key)) for key in keys}
        loading = {load for load in loads if load is not None and not load.done()}
        if not loading:
            return
        loop = self._environment.loop
        waiting: Future[None] = loop.create_future()

        def on_loaded(load: Task[None]) -> None:
            loading.discard(load)
            if not loading:
                complete(waiting, None)

        for load in list(loading):
            load.add_done_callback(on_loaded)
        timer = loop.call_later(MAX_LOAD_WAIT_S, complete, waiting, None)
        await waiting
        timer.cancel()

    def _load_epoch(self, tp: TopicPartition, epoch: int) -> None:
        """Load a partition, unless that has begun in this leader epoch."""
        context = self._contexts.get(tp.partition)
        if context is None or context.epoch != epoch:
            self._resign(tp.partition)
            self._elect(tp, epoch)

    def _elect(self, tp: TopicPartition, epoch: int) -> None:
        context: CoordinatorContext[S] = CoordinatorContext(
            self._environment, self._log, tp, epoch, self._config, self._reload
        )
        context.shard = self._make_shard(context)
        self._contexts[tp.partition] = context
        self._loads[tp.partition] = self._environment.loop.create_task(self._load(context))

    def _resign(self, partition: int) -> None:
        context = self._contexts.pop(partition, None)
        self._loads.pop(partition, None)
        if context is not None:
            context.close(ErrorCode.NOT_COORDINATOR)

    async def _load(self, context: CoordinatorContext[S]) -> None:
        partition = context.tp.partition
        try:
            await self._environment.turns.run(context.load())
        except KafkaError as error:
            is_expected = context.state is CoordinatorState.CLOSED or isinstance(error, LeadershipEnded)
            if partition not in self._failed and not is_expected:
                self._failed.add(partition)
                log.error("a coordinator's partition cannot be loaded", partition=context.tp, reason=error)
            context.close(error.code)
            # Malformed bytes stay malformed. Other errors may be temporary: the log may be opened later.
            if not isinstance(error.__cause__, MalformedError):
                self._environment.loop.call_later(RELOAD_DELAY_S, self._reload, context)
        else:
            self._failed.discard(partition)
            context.activate()

    def _reload(self, context: CoordinatorContext[S]) -> None:
        if self._contexts.get(context.tp.partition) is context:
            self._elect(context.tp, context.epoch)


class Coordinator(Generic[S]):
    """The coordinator of an internal topic: the runtime of the topic, and periodic tasks. Each kind has a subclass."""

    topic: str

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        metadata: MetadataImage,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._log = internal_log
        self._metadata = metadata
        self._config = config
        self.runtime: CoordinatorRuntime[S] = CoordinatorRuntime(
            environment, internal_log, metadata, self.topic, lambda: self._runtime_config(config()), self._make_shard
        )
        self._tasks: list[PeriodicTask] = []

    def _runtime_config(self, config: BrokerConfig) -> RuntimeConfig:
        raise NotImplementedError

    def _make_shard(self, context: CoordinatorContext[S]) -> S:
        raise NotImplementedError

    def _repeat(self, name: str, period_ms: Callable[[], int], run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task periodically while this broker has partitions of the topic."""
        self._tasks.append(PeriodicTask(self._environment, name, period_ms, run, self.runtime.contexts))

    async def start(self) -> None:
        """Load the partitions that this broker leads."""
        self.runtime.start()
        for task in self._tasks:
            task.schedule()

    async def stop(self) -> None:
        for task in self._tasks:
            await task.stop()
        self.runtime.resign()

    def resign(self) -> None:
        """Give up all partitions: the session with the coordination service has ended."""
        self.runtime.resign()

    def on_delta(self, delta: MetadataDelta) -> None:
        """Follow elections and deletions, when the image changes. Loading continues in the background."""
        self.runtime.on_delta(delta)
        for task in self._tasks:
            task.schedule()
