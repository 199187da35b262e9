"""MetadataLoader: keeps a broker's metadata image up to date with the coordination service.

It first reads all nodes. Then it follows the numbered changes (store/change_log.py): it reads the nodes that a change
has written again, and compares them with their previous contents (store/loaded_nodes.py). A change of a few partitions
includes their new state, so its cost does not depend on the number of partitions. The controller's own broker loads
its changes in the same way, so there is one path from a change to the image and its listeners. Only the controller's id
is not part of a change: it is read from the controller's ephemeral node.
"""

from __future__ import annotations

from asyncio import Lock
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER
from kbroker.coordination.interface import NoNode, SessionExpired, Unavailable, WatchEvent
from kbroker.metadata.image import DeltaListener, MetadataDelta, MetadataImage, PartitionChange
from kbroker.metadata.recovery.deleted_topics import read_deleted_topics
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import (
    RECENT_CHANGES,
    Change,
    ChangeLog,
    NodesToRead,
    decode_change,
    decode_change_log,
    recent_path,
)
from kbroker.metadata.store.loaded_nodes import LoadedNodes

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task

    from kbroker.coordination.interface import Coordination, Node

# Backoff before the next attempt while the service is unavailable, in seconds.
RETRY_BACKOFF_S = 0.5
# Nodes may be written while they are read. The nodes of these later changes are then read, too, so that the image has
# whole changes only: a broker must not find itself unfenced in an image with the former leaders. The bound applies if a
# controller writes faster than this broker reads.
MAX_READS = 20


class MetadataLoader(LoadedNodes):
    """Reads nodes, computes deltas, applies them to the image, and calls the listeners.

    `change_log` is that of the nodes as last read, to which the controller adds its changes.
    """

    def __init__(
        self,
        coordination: Coordination,
        loop: AbstractEventLoop,
        image: MetadataImage,
        on_failure: Callable[[BaseException], None],
        check_cluster: Callable[[], Awaitable[None]],
    ) -> None:
        """`check_cluster` is awaited before all nodes are read. Raises ForeignCluster if they are of another cluster.

        `on_failure` is called when the image can no longer be kept up to date. The reason is that the session has
        expired, a node is invalid, or a listener has failed. While the service is unavailable, the image stays
        unchanged.
        """
        super().__init__(image)
        # Called in the iteration of the loop in which the image changes, before any listener.
        self.roles_listeners: list[Callable[[MetadataDelta], None]] = []
        # Awaited with one delta after the other in a task of their own: opening 1,000 logs must not delay a failover.
        self.listeners: list[DeltaListener] = []
        self.change_log = ChangeLog()
        self.change_log_version = 0
        self._coordination = coordination
        self._loop = loop
        self._on_failure = on_failure
        self._check_cluster = check_cluster
        self._lock = Lock()
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

    async def read_controller(self) -> None:
        """Catch up, and read the controller's node even if no event has reported a change. Raises CoordinationError."""
        await self._coordination.sync()
        self._controller_changed = True
        await self.catch_up()

    def apply(self, delta: MetadataDelta) -> None:
        """Apply a delta to the image, and pass it to the listeners."""
        self.image.apply(delta)
        self._change_roles(delta)
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
        self._change_roles(MetadataDelta(partitions=changes))

    def _change_roles(self, delta: MetadataDelta) -> None:
        try:
            for listener in self.roles_listeners:
                listener(delta)
        except Exception as error:
            # The caller may be a request, which would hide that the roles are not those of the image.
            self._on_failure(error)

    async def wait_for_listeners(self) -> None:
        """Wait until the listeners have processed the deltas of all changes that the image has."""
        if self._processing is not None:
            processed = self._loop.create_future()
            self._waiting.append(processed)
            await processed

    async def wait_if_alone(self) -> None:
        """Wait for this broker's listeners, if it is alone. Of several brokers, others might have to act as well."""
        if len(self.image.brokers) + len(self.image.fenced_brokers) <= 1:
            await self.wait_for_listeners()

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
        try:
            node = await self._coordination.get(znodes.CHANGES, self._on_change)
        except NoNode:
            await self._check_cluster()
            raise
        change_log = decode_change_log(node.data)
        if self._loaded and change_log.number == self.change_log.number:
            self.change_log_version = node.version
            return
        number = self.change_log.number if self._loaded else None
        nodes: dict[str, bytes | None] = {}
        to_read = NodesToRead()
        for reads in range(1, MAX_READS + 1):
            changed, latest = await self._read_since(number, change_log, node, to_read)
            nodes |= changed
            if latest.version == node.version or reads == MAX_READS:
                break
            number = change_log.number
            node, change_log = latest, decode_change_log(latest.data)
        deleted = None
        if to_read.reads_all:
            deleted = await read_deleted_topics(self._coordination) if self.missing_topics(nodes) else frozenset()
        # If a node is invalid, the next attempt reads all of them again.
        self._loaded = False
        self.update(nodes, to_read.rows, delta, deleted)
        self.change_log, self.change_log_version, self._loaded = change_log, node.version, True

    async def _read_since(
        self, number: int | None, change_log: ChangeLog, node: Node, to_read: NodesToRead
    ) -> tuple[dict[str, bytes | None], Node]:
        """Read the nodes that were written after the change `number` (None: all nodes), then CHANGES (`node`) again.

        Adds the rows of the changes to `to_read`. A session's requests are handled in order: if CHANGES is as before,
        nothing was written during the other reads. It is not read again if there was no other read.
        """
        changes = None if number is None else await self._changes_since(number, change_log)
        nodes: dict[str, bytes | None] = {}
        if changes is None:
            await self._check_cluster()
            to_read.reads_all = True
            to_read.rows.clear()
            nodes, paths = dict.fromkeys(self.known_paths()), await self._all_paths()
        else:
            to_read.paths.clear()
            for change in changes:
                to_read.add(change)
            paths = list(to_read.paths)
        if not paths:
            return nodes, node
        *read, latest = await self._coordination.get_many([*paths, znodes.CHANGES])
        if latest is None:
            raise NoNode(znodes.CHANGES)
        nodes |= {path: node and node.data for path, node in zip(paths, read, strict=True)}
        moves = self.reassignment_plan.missing_paths(nodes) if znodes.REASSIGNMENT_PLAN in nodes else []
        if moves:
            *read, latest = await self._coordination.get_many([*moves, znodes.CHANGES])
            if latest is None:
                raise NoNode(znodes.CHANGES)
            nodes |= {path: node and node.data for path, node in zip(moves, read, strict=True)}
        return nodes, latest

    async def _changes_since(self, number: int, change_log: ChangeLog) -> list[Change] | None:
        """Return the changes after `number`, in order; None if the ring no longer has all of them."""
        missed = change_log.number - number
        if not 0 < missed <= RECENT_CHANGES:
            return None
        numbers = range(number + 1, change_log.number + 1)
        if missed == 1 and change_log.last is not None:
            return [change_log.last]
        paths = [recent_path(each) for each in numbers]
        read = await self._coordination.get_many(paths)
        changes = [
            change
            for path, node in zip(paths, read, strict=True)
            if node is not None and (change := decode_change(path, node.data)) is not None
        ]
        return changes if [change.number for change in changes] == list(numbers) else None

    async def _all_paths(self) -> list[str]:
        roots = (znodes.PARTITIONS, znodes.TOPICS, znodes.REGISTRATIONS, *znodes.CONFIG_ROOTS)
        paths = [f"{root}/{name}" for root in roots for name in await self._coordination.children(root)]
        for root in (znodes.USERS, znodes.QUOTAS, znodes.ACLS):
            with suppress(NoNode):  # the version that created the cluster had none
                paths += [f"{root}/{name}" for name in await self._coordination.children(root)]
        return [
            *paths,
            znodes.FEATURES,
            znodes.REASSIGNMENT_PLAN,
        ]

    async def _read_controller(self, delta: MetadataDelta) -> None:
        version = await self._coordination.exists(znodes.CONTROLLER, self._on_controller_change)
        (node,) = [None] if version is None else await self._coordination.get_many([znodes.CONTROLLER])
        controller_id = NO_LEADER if node is None else znodes.decode(znodes.CONTROLLER, node.data)["broker"]
        if controller_id != self.image.controller_id:
            delta.controller_id = controller_id

    def _on_controller_change(self, event: WatchEvent) -> None:
        self._controller_changed = True
        self._on_change()

    def _on_change(self, event: WatchEvent | None = None) -> None:
        """Catch up in the background."""
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
            self._loop.call_later(RETRY_BACKOFF_S, self._on_change)
        elif isinstance(error, SessionExpired):
            return  # Coordination.on_expired reports it
        elif error is not None and self._following:
            self._on_failure(error)
