"""MetadataLoader: keeps a broker's metadata image up to date with the coordination service.

It first reads all nodes. Then it follows the numbered changes in znodes.CHANGES: it reads the nodes that a change has
written again, and compares them with their previous contents. The controller's own broker loads its changes in the same
way, so there is one path from a change to the image and its listeners. Only the controller's id is no such change: it
is read from the controller's ephemeral node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER, TopicPartition
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.features import INITIAL_FEATURES
from kbroker.metadata.image import (
    DeltaListener,
    KnownBroker,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import SessionExpired, Unavailable, WatchEvent
from kbroker.runtime.mutex import Mutex

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task

    from kbroker.metadata.store.coordination import Coordination

# The data of nodes by path, None for a node that does not exist.
NodeData = Mapping[str, bytes | None]

# Backoff before the next attempt while the service is unavailable, in seconds.
RETRY_BACKOFF_S = 0.5


class MetadataLoader:
    """Reads nodes, computes deltas, applies them to the image, and calls the listeners.

    `change_log`, `topics`, `chunks` and `registrations` are the nodes as last read, from which the controller makes its
    changes.
    """

    def __init__(
        self,
        coordination: Coordination,
        loop: AbstractEventLoop,
        image: MetadataImage,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`on_failure` is called when the image can no longer be kept up to date.

        The reason is that the session has expired, a node is invalid, or a listener has failed. While the service is
        unavailable, the image stays unchanged.
        """
        self.image = image
        # Called in the iteration of the loop in which the image changes, before any listener.
        self.roles_listeners: list[Callable[[MetadataDelta], None]] = []
        # Awaited with one delta after the other in a task of their own: opening 1,000 logs must not delay a failover.
        self.listeners: list[DeltaListener] = []
        self.change_log = znodes.ChangeLog()
        self.change_log_version = 0
        self.topics: dict[str, znodes.TopicNode] = {}
        self.chunks: dict[int, znodes.Chunk] = {}
        self.registrations: dict[int, KnownBroker] = {}
        self._topic_names: dict[bytes, str] = {}
        # The partitions of all chunks, by topic id and index.
        self._partitions: dict[bytes, dict[int, PartitionRegistration]] = {}
        self._coordination = coordination
        self._loop = loop
        self._on_failure = on_failure
        self._lock = Mutex(loop)
        # Whether the controller may have changed since its node was last read.
        self._controller_changed = True
        self._loaded = False
        self._following = False
        self._tasks: set[Task[None]] = set()
        # Deltas that the listeners have not processed, and those who wait until they have.
        self._unprocessed: deque[MetadataDelta] = deque()
        self._processing: Task[None] | None = None
        self._waiting: list[Future[None]] = []

    def follow(self) -> None:
        """Load further changes as they are made. Until this call, only `catch_up` loads changes."""
        self._following = True

    def stop(self) -> None:
        """Ignore watches from now on."""
        self._following = False

    def use_session(self, coordination: Coordination) -> None:
        """Continue with a new session, after `stop`: `catch_up` reads all nodes again."""
        self._coordination = coordination
        self._controller_changed = True
        self._loaded = False

    async def catch_up(self) -> None:
        """Wait until the image has every change that a read now returns.

        These are all changes of this broker, and after `Coordination.sync` those of others. Raises CoordinationError.
        """
        async with self._lock:
            delta = MetadataDelta()
            controller_changed, self._controller_changed = self._controller_changed, False
            try:
                if controller_changed:
                    await self._read_controller(delta)
                await self._read_changes(delta)
            except BaseException:
                # The delta is discarded, so the controller's node must be read again.
                self._controller_changed |= controller_changed
                raise
            if delta:
                self.apply(delta)

    def apply(self, delta: MetadataDelta) -> None:
        """Apply a delta to the image, and pass it to the listeners."""
        self.image.apply(delta)
        for listener in self.roles_listeners:
            listener(delta)
        if self.listeners:
            self._unprocessed.append(delta)
            if self._processing is None:
                self._processing = self._loop.create_task(self._process_deltas())

    def replay_roles(self) -> None:
        """Call the roles listeners with all partitions, as changes from their current state to the same."""
        changes = [
            PartitionChange(tp, self.image.topics[tp.topic].topic_id, partition, partition)
            for tp, partition in self.image.partitions()
        ]
        for listener in self.roles_listeners:
            listener(MetadataDelta(partitions=changes))

    async def wait_for_listeners(self) -> None:
        """Wait until the listeners have processed the deltas of all changes that the image has."""
        if self._processing is not None:
            processed = self._loop.create_future()
            self._waiting.append(processed)
            await processed

    async def _process_deltas(self) -> None:
        try:
            while self._unprocessed:
                delta = self._unprocessed.popleft()
                for listener in self.listeners:
                    await listener(delta)
        except Exception as error:
            self._on_failure(error)
        finally:
            self._processing = None
            waiting, self._waiting = self._waiting, []
            for processed in waiting:
                if not processed.done():
                    processed.set_result(None)

    async def _read_changes(self, delta: MetadataDelta) -> None:
        node = await self._coordination.get(znodes.CHANGES, self._on_change)
        change_log = znodes.decode_change_log(node.data)
        if self._loaded and change_log.number == self.change_log.number:
            self.change_log_version = node.version
            return
        paths = change_log.paths_since(self.change_log.number) if self._loaded else None
        if paths is None:
            known_nodes: NodeData = dict.fromkeys(self._known_paths())
            nodes: NodeData = {**known_nodes, **await self._read(await self._all_paths())}
        else:
            nodes = await self._read(paths)
        self.change_log, self.change_log_version, self._loaded = change_log, node.version, True
        self._update(nodes, delta)

    async def _read(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """Read nodes; the result is None for a node that a later change has deleted."""
        nodes = await self._coordination.get_many(paths)
        return {path: node and node.data for path, node in zip(paths, nodes, strict=True)}

    async def _all_paths(self) -> list[str]:
        roots = (znodes.PARTITIONS, znodes.TOPICS, znodes.REGISTRATIONS, *znodes.CONFIG_ROOTS)
        return [f"{root}/{name}" for root in roots for name in await self._coordination.children(root)] + [
            znodes.FEATURES
        ]

    def _known_paths(self) -> Iterable[str]:
        yield from map(znodes.chunk_path, self.chunks)
        yield from map(znodes.topic_path, self.topics)
        yield from map(znodes.registration_path, self.registrations)
        for resource_type in znodes.CONFIG_DIRECTORIES:
            for name in self.image.resources_with_overrides(resource_type):
                yield znodes.config_path(ConfigResource(resource_type, name))

    def _update(self, nodes: NodeData, delta: MetadataDelta) -> None:
        """Store the current data of nodes, and add the resulting changes of the image to the delta."""
        # The ids of topics that may have changed; a dict to keep their order.
        changed: dict[bytes, None] = {}
        for path, data in nodes.items():
            parent, _, name = path.rpartition("/")
            if parent == znodes.TOPICS:
                self._update_topic(name, None if data is None else znodes.decode_topic(name, data), changed)
            elif parent == znodes.REGISTRATIONS:
                self._update_broker(int(name), None if data is None else znodes.decode_registration(int(name), data))
            elif path == znodes.FEATURES:
                features = INITIAL_FEATURES if data is None else znodes.decode_features(data)
                if features != self.image.features:
                    delta.features = features
            elif parent != znodes.PARTITIONS:
                overrides: dict[str, str] = {} if data is None else znodes.decode(path, data)
                resource = znodes.config_resource(path)
                if overrides != self.image.overrides(*resource):
                    delta.configs[resource] = overrides
        self._update_chunks(
            {
                int(path.rpartition("/")[2]): znodes.decode_chunk(int(path.rpartition("/")[2]), data or b"{}")
                for path, data in nodes.items()
                if path.startswith(znodes.PARTITIONS + "/")
            },
            changed,
        )
        for topic_id in changed:
            self._add_topic_delta(topic_id, delta)
        self._add_broker_deltas(delta)

    def _update_broker(self, broker_id: int, known: KnownBroker | None) -> None:
        if known is None:
            self.registrations.pop(broker_id, None)
        else:
            self.registrations[broker_id] = known

    def _add_broker_deltas(self, delta: MetadataDelta) -> None:
        image = self.image
        for broker_id in image.brokers.keys() | image.fenced_brokers.keys() | self.registrations.keys():
            known = self.registrations.get(broker_id)
            unfenced = known.registration if known is not None and not known.fenced else None
            fenced = known.registration if known is not None and known.fenced else None
            if image.brokers.get(broker_id) != unfenced:
                delta.brokers[broker_id] = unfenced
            if image.fenced_brokers.get(broker_id) != fenced:
                delta.fenced_brokers[broker_id] = fenced

    def _update_topic(self, name: str, new: znodes.TopicNode | None, changed: dict[bytes, None]) -> None:
        old = self.topics.pop(name, None)
        if old is not None:
            self._topic_names.pop(old.topic_id, None)
            changed[old.topic_id] = None
        if new is not None:
            self.topics[name] = new
            self._topic_names[new.topic_id] = name
            changed[new.topic_id] = None

    def _update_chunks(self, chunks: dict[int, znodes.Chunk], changed: dict[bytes, None]) -> None:
        # All removals come before all additions: a partition may have moved from one chunk to another.
        for number, chunk in chunks.items():
            for topic_id, partitions in self.chunks.get(number, {}).items():
                if partitions != chunk.get(topic_id):
                    changed[topic_id] = None
                    for index in partitions:
                        del self._partitions[topic_id][index]
        for number, chunk in chunks.items():
            old = self.chunks.get(number, {})
            for topic_id, partitions in chunk.items():
                if partitions != old.get(topic_id):
                    changed[topic_id] = None
                    self._partitions.setdefault(topic_id, {}).update(partitions)
            self.chunks[number] = chunk
        for topic_id in changed:
            if not self._partitions.get(topic_id, True):
                del self._partitions[topic_id]

    def _add_topic_delta(self, topic_id: bytes, delta: MetadataDelta) -> None:
        """Compare a topic with the one in the image, and add the differences to the delta."""
        old = self.image.topics_by_id.get(topic_id)
        name = self._topic_names.get(topic_id)
        new = None if name is None else self._build_topic(name, topic_id, delta)
        if new is None:
            if old is not None:
                delta.deleted.append(old)
        elif old is None:
            delta.created.append(new)
        elif old.partitions != new.partitions:
            delta.updated.append(new)
        old_partitions = old.partitions if old else []
        new_partitions = new.partitions if new else []
        for index in range(max(len(old_partitions), len(new_partitions))):
            old_partition = old_partitions[index] if index < len(old_partitions) else None
            new_partition = new_partitions[index] if index < len(new_partitions) else None
            if old_partition != new_partition:
                tp = TopicPartition(name or (old.name if old else ""), index)
                delta.partitions.append(PartitionChange(tp, topic_id, old_partition, new_partition))

    def _build_topic(self, name: str, topic_id: bytes, delta: MetadataDelta) -> TopicImage:
        """Build the topic with its partitions up to the first that is missing.

        Partitions can be missing if the chunks were read while the controller wrote the next change.
        """
        known = self._partitions.get(topic_id, {})
        partitions: list[PartitionRegistration] = []
        while (partition := known.get(len(partitions))) is not None:
            partitions.append(partition)
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = delta.configs.get(resource, self.image.overrides(*resource))
        node = self.topics[name]
        return TopicImage(name, topic_id, node.internal, configs, partitions, node.has_kafka_key_hash)

    async def _read_controller(self, delta: MetadataDelta) -> None:
        version = await self._coordination.exists(znodes.CONTROLLER, self._on_controller_change)
        node = None if version is None else (await self._read([znodes.CONTROLLER]))[znodes.CONTROLLER]
        controller_id = NO_LEADER if node is None else znodes.decode(znodes.CONTROLLER, node)["broker"]
        if controller_id != self.image.controller_id:
            delta.controller_id = controller_id

    def _on_controller_change(self, event: WatchEvent) -> None:
        self._controller_changed = True
        self._start_catch_up()

    def _on_change(self, event: WatchEvent) -> None:
        self._start_catch_up()

    def _start_catch_up(self) -> None:
        if not self._following:
            return
        task = self._loop.create_task(self.catch_up())
        self._tasks.add(task)
        task.add_done_callback(self._on_caught_up)

    def _on_caught_up(self, task: Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Unavailable):
            # The watch may not have been set, so perhaps no event would start the next attempt.
            self._loop.call_later(RETRY_BACKOFF_S, self._start_catch_up)
        elif isinstance(error, SessionExpired):
            return  # Coordination.on_expired reports it
        elif error is not None and self._following:
            self._on_failure(error)
