"""Initializes, deletes and reads the states of share groups, with the share coordinators of their partitions.

    operation on the group -> its record is committed -> requests to the share coordinators -> the end is recorded

What a broker has begun and not recorded as ended is begun again: by a heartbeat, or by the tool that deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.group.share.share_groups import ShareGroups
from kbroker.coordinator.group.share.state_topics import Initialization, StatePartitions, StatesByTopic
from kbroker.coordinator.runtime.coordinator_context import ACTIVE
from kbroker.coordinator.share.share_partition_state import SharePartitionKey, StateSummary
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.coordinator.group.group_coordinator import GroupCoordinator
    from kbroker.coordinator.share.persister import ShareStatePersister
    from kbroker.metadata.image import MetadataImage
    from kbroker.runtime.environment import Environment

T = TypeVar("T")
log = EventLogger("kbroker.groups")

# (topic id, partition)
TopicIdPartition = tuple[bytes, int]
Errors = dict[TopicIdPartition, KafkaError]


class ShareGroupStates:
    """Methods raise KafkaError if the group does not admit the operation, or its coordinator is elsewhere."""

    def __init__(
        self,
        environment: Environment,
        metadata: MetadataImage,
        groups: GroupCoordinator,
        persister: ShareStatePersister,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._groups = groups
        self._persister = persister
        self._tasks: dict[Task[Any], None] = {}

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    # Initialization.

    def begin_initialization(self, initialization: Initialization) -> None:
        """Initialize states in the background. The heartbeats of the group find out when it has ended."""
        self._start(self._initialize_for_heartbeat(initialization))

    async def _initialize_for_heartbeat(self, initialization: Initialization) -> None:
        try:
            errors = await self.initialize(initialization)
        except KafkaError as error:
            errors = {(b"", -1): error}
        if errors:
            reason = next(iter(errors.values()))
            log.warning("states of a share group are not initialized yet", group=initialization.group_id, reason=reason)

    async def alter(self, group_id: str, start_offsets: Mapping[str, Mapping[int, int]]) -> Errors:
        """Set the start offsets of an empty group, by topic and partition. Returns the errors."""
        initialization = await self._groups.write(
            group_id, ShareGroups, lambda kind: kind.alter_offsets(group_id, start_offsets)
        )
        return await self.initialize(initialization)

    async def initialize(self, initialization: Initialization) -> Errors:
        """Initialize states, and record the end. Returns the errors; with any, all are initialized again later."""
        group_id, start_offsets = initialization.group_id, initialization.start_offsets
        # A group coordinator that was replaced must not reset what its successor has initialized.
        context = self._groups.runtime.context(group_id)
        calls = {
            SharePartitionKey(group_id, topic_id, index): partial(
                self._persister.initialize,
                state_epoch=initialization.state_epoch,
                start_offset=start_offset,
                may_repeat=lambda: context.state is ACTIVE,
            )
            for topic_id, offsets in start_offsets.items()
            for index, start_offset in offsets.items()
        }
        _, errors = await self._call(calls)
        states = {
            topic_id: StatePartitions(self._topic_name(topic_id), frozenset(offsets))
            for topic_id, offsets in start_offsets.items()
            if offsets
        }
        if states:
            await self._groups.write(
                group_id, ShareGroups, lambda kind: kind.end_initialization(group_id, states, is_done=not errors)
            )
        return errors

    # Deletion.

    async def delete(self, group_id: str, topics: Collection[str] | None = None) -> tuple[StatesByTopic, Errors]:
        """Delete the states of topics, of all if None. Returns those that existed, and the errors."""
        states = await self._groups.write(group_id, ShareGroups, lambda kind: kind.begin_deletion(group_id, topics))
        calls = {
            SharePartitionKey(group_id, topic_id, index): self._persister.delete
            for topic_id, (_, partitions) in states.items()
            # Those of a topic that does not exist any more are deleted without a request.
            if topic_id in self._metadata.topics_by_id
            for index in sorted(partitions)
        }
        _, errors = await self._call(calls)
        failed = {topic_id for topic_id, _ in errors}
        deleted = states.keys() - failed
        if deleted:
            await self._groups.write(group_id, ShareGroups, lambda kind: kind.end_deletion(group_id, deleted))
        return states, errors

    async def delete_group_states(self, group_id: str) -> None:
        """Delete the states of an empty group, which is about to be deleted. Raises the first error."""
        _, errors = await self.delete(group_id)
        for error in errors.values():
            raise error

    # Description.

    async def summaries(
        self, group_id: str, partitions: Iterable[TopicIdPartition]
    ) -> tuple[dict[TopicIdPartition, StateSummary], Errors]:
        """Return the summaries of states, and the errors of those that cannot be read."""
        keys = [SharePartitionKey(group_id, *partition) for partition in partitions]
        return await self._call(dict.fromkeys(keys, self._persister.read_summary))

    # Calls of the share coordinators.

    async def _call(
        self, calls: Mapping[SharePartitionKey, Callable[[SharePartitionKey], Coroutine[Any, Any, T]]]
    ) -> tuple[dict[TopicIdPartition, T], Errors]:
        """Call at the same time, so that calls share requests."""
        tasks = {key: self._start(call(key)) for key, call in calls.items()}
        results: dict[TopicIdPartition, T] = {}
        errors: Errors = {}
        for key, task in tasks.items():
            try:
                results[key.topic_id, key.partition] = await task
            except KafkaError as error:
                errors[key.topic_id, key.partition] = error
        return results, errors

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        task = self._environment.loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _topic_name(self, topic_id: bytes) -> str:
        topic = self._metadata.topics_by_id.get(topic_id)
        return "<UNKNOWN>" if topic is None else topic.name
