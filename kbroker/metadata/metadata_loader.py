"""Keeps the metadata image at what the coordination service says.

It reads everything once, then follows the numbered changes: the nodes that a change touched are read again
and compared with what was known. The controller's own broker learns of its changes in the same way, so that
there is one path from a written change to the image and its listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER, TopicPartition
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.features import INITIAL_FEATURES
from kbroker.metadata.image import (
    BrokerRegistration,
    DeltaListener,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import Unavailable, WatchEvent
from kbroker.runtime.turnstile import Turnstile

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from kbroker.metadata.store.coordination import Coordination

Contents = Mapping[str, bytes | None]

# How long until it is tried again to follow, when the service could not be reached, in seconds.
AGAIN_S = 0.5


class MetadataLoader:
    """Reads nodes, computes deltas, carries the image forward, and has the listeners act on each delta in
    turn.

    `topics` and `chunks` are the nodes as last read: the controller builds its writes on them.
    """

    def __init__(
        self,
        coordination: Coordination,
        loop: AbstractEventLoop,
        image: MetadataImage,
        failed: Callable[[BaseException], None],
    ) -> None:
        """`failed` is told when following stops: the session is lost, or a listener or a node is broken. While the
        service cannot be reached, the image stays as it is."""
        self.image = image
        self.listeners: list[DeltaListener] = []
        self.changes = znodes.ChangeLog()
        self.changes_version = 0
        self.topics: dict[str, znodes.TopicNode] = {}
        self.chunks: dict[int, znodes.Chunk] = {}
        self._names: dict[bytes, str] = {}
        self._states: dict[bytes, dict[int, PartitionRegistration]] = {}
        self._coordination = coordination
        self._loop = loop
        self._failed = failed
        self._turn = Turnstile(loop)
        self._members_changed = True
        self._loaded = False
        self._stopped = False
        self._tasks: set[Task[None]] = set()

    def stop(self) -> None:
        """Follow no longer: what watches still report is not looked at."""
        self._stopped = True

    async def catch_up(self) -> None:
        """Returns when the image holds every change made before the call, and the listeners have acted on
        it. Raises CoordinationError.
        """
        async with self._turn:
            delta = MetadataDelta()
            members, self._members_changed = self._members_changed, False
            try:
                if members:
                    await self._read_members(delta)
                await self._read_changes(delta)
            except BaseException:
                # What was read of them is not in the image.
                self._members_changed |= members
                raise
            if delta:
                self.image.apply(delta)
                for listener in self.listeners:
                    await listener(delta)

    async def _read_changes(self, delta: MetadataDelta) -> None:
        node = await self._coordination.get(znodes.CHANGES, self._on_event)
        changes = znodes.decode_changes(node.data)
        if self._loaded and changes.number == self.changes.number:
            self.changes_version = node.version
            return
        paths = changes.since(self.changes.number) if self._loaded else None
        if paths is None:
            known: Contents = dict.fromkeys(self._known_paths())
            contents: Contents = {**known, **await self._read(await self._all_paths())}
        else:
            contents = await self._read(paths)
        self.changes, self.changes_version, self._loaded = changes, node.version, True
        self._absorb(contents, delta)

    async def _read(self, paths: Sequence[str]) -> dict[str, bytes | None]:
        """A change later than the one that is followed may have removed a node already: None then."""
        nodes = await self._coordination.get_many(paths)
        return {path: node and node.data for path, node in zip(paths, nodes, strict=True)}

    async def _all_paths(self) -> list[str]:
        roots = (znodes.PARTITIONS, znodes.TOPICS, *znodes.CONFIG_ROOTS)
        return [f"{root}/{name}" for root in roots for name in await self._coordination.children(root)] + [
            znodes.FEATURES
        ]

    def _known_paths(self) -> Iterable[str]:
        yield from map(znodes.chunk_path, self.chunks)
        yield from map(znodes.topic_path, self.topics)
        for resource_type in znodes.CONFIG_KINDS:
            for name in self.image.config_resources(resource_type):
                yield znodes.config_path(ConfigResource(resource_type, name))

    def _absorb(self, contents: Contents, delta: MetadataDelta) -> None:
        """Takes in what nodes hold now (None: gone) and adds to the delta what that changes in the image."""
        touched: dict[bytes, None] = {}
        for path, data in contents.items():
            parent, _, name = path.rpartition("/")
            if parent == znodes.TOPICS:
                self._absorb_topic(name, None if data is None else znodes.decode_topic(name, data), touched)
            elif path == znodes.FEATURES:
                features = INITIAL_FEATURES if data is None else znodes.decode_features(data)
                if features != self.image.features:
                    delta.features = features
            elif parent != znodes.PARTITIONS:
                overrides: dict[str, str] = {} if data is None else znodes.decode(path, data)
                resource = znodes.config_resource(path)
                if overrides != self.image.overrides(*resource):
                    delta.configs[resource] = overrides
        self._absorb_chunks(
            {
                int(path.rpartition("/")[2]): znodes.decode_chunk(int(path.rpartition("/")[2]), data or b"{}")
                for path, data in contents.items()
                if path.startswith(znodes.PARTITIONS + "/")
            },
            touched,
        )
        for topic_id in touched:
            self._compare(topic_id, delta)

    def _absorb_topic(self, name: str, new: znodes.TopicNode | None, touched: dict[bytes, None]) -> None:
        old = self.topics.pop(name, None)
        if old is not None:
            self._names.pop(old.topic_id, None)
            touched[old.topic_id] = None
        if new is not None:
            self.topics[name] = new
            self._names[new.topic_id] = name
            touched[new.topic_id] = None

    def _absorb_chunks(self, chunks: dict[int, znodes.Chunk], touched: dict[bytes, None]) -> None:
        """All removals before all additions: a partition may have moved from one chunk to another."""
        for number, chunk in chunks.items():
            for topic_id, states in self.chunks.get(number, {}).items():
                if states != chunk.get(topic_id):
                    touched[topic_id] = None
                    for index in states:
                        del self._states[topic_id][index]
        for number, chunk in chunks.items():
            old = self.chunks.get(number, {})
            for topic_id, states in chunk.items():
                if states != old.get(topic_id):
                    touched[topic_id] = None
                    self._states.setdefault(topic_id, {}).update(states)
            self.chunks[number] = chunk
        for topic_id in touched:
            if not self._states.get(topic_id, True):
                del self._states[topic_id]

    def _compare(self, topic_id: bytes, delta: MetadataDelta) -> None:
        old = self.image.topics_by_id.get(topic_id)
        name = self._names.get(topic_id)
        new = None if name is None else self._build(name, topic_id, delta)
        if new is None:
            if old is not None:
                delta.deleted.append(old)
        elif old is None:
            delta.created.append(new)
        elif old.partitions != new.partitions:
            delta.updated.append(new)
        before = old.partitions if old else []
        after = new.partitions if new else []
        for index in range(max(len(before), len(after))):
            was = before[index] if index < len(before) else None
            now = after[index] if index < len(after) else None
            if was != now:
                tp = TopicPartition(name or (old.name if old else ""), index)
                delta.partitions.append(PartitionChange(tp, topic_id, was, now))

    def _build(self, name: str, topic_id: bytes, delta: MetadataDelta) -> TopicImage:
        """Partitions up to the first gap: a read that fell between two changes may see only some of the
        chunks.
        """
        states = self._states.get(topic_id, {})
        partitions: list[PartitionRegistration] = []
        while (state := states.get(len(partitions))) is not None:
            partitions.append(state)
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = delta.configs.get(resource, self.image.overrides(*resource))
        return TopicImage(name, topic_id, self.topics[name].internal, configs, partitions)

    async def _read_members(self, delta: MetadataDelta) -> None:
        """The registered brokers and the controller: ephemeral nodes, which no numbered change announces."""
        await self._coordination.exists(znodes.CONTROLLER, self._on_members)
        names = await self._coordination.children(znodes.BROKERS, self._on_members)
        read = await self._read([*(f"{znodes.BROKERS}/{name}" for name in names), znodes.CONTROLLER])
        controller = read.pop(znodes.CONTROLLER)
        members: dict[int, BrokerRegistration] = {}
        for name, data in zip(names, read.values(), strict=True):
            if data is not None:
                members[int(name)] = znodes.decode_broker(int(name), data)
        for node_id in self.image.brokers.keys() | members.keys():
            if self.image.brokers.get(node_id) != members.get(node_id):
                delta.brokers[node_id] = members.get(node_id)
        elected = NO_LEADER if controller is None else znodes.decode(znodes.CONTROLLER, controller)["broker"]
        if elected != self.image.controller_id:
            delta.controller_id = elected

    def _on_members(self, event: WatchEvent) -> None:
        self._members_changed = True
        self._on_event(event)

    def _on_event(self, event: WatchEvent) -> None:
        self._follow()

    def _follow(self) -> None:
        if self._stopped:
            return
        task = self._loop.create_task(self.catch_up())
        self._tasks.add(task)
        task.add_done_callback(self._caught_up)

    def _caught_up(self, task: Task[None]) -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if isinstance(fault, Unavailable):
            # Nobody watches now who would try again.
            self._loop.call_later(AGAIN_S, self._follow)
        elif fault is not None and not self._stopped:
            self._failed(fault)
