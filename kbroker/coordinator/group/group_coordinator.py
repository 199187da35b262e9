"""The group coordinator: the operations that handlers call, and the expiration of offsets.

A group belongs to the partition of __consumer_offsets that its id hashes to. Its coordinator is the leader of this
partition.
"""

from asyncio import Future
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.classic.classic_members import ClassicMembers
from kbroker.coordinator.group.group import Committer, Group
from kbroker.coordinator.group.group_shard import GroupKind, GroupShard, TopicPartitions
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.offset_metadata_manager import FetchedOffsets
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.group.topics import changed_topics, removed_partitions
from kbroker.coordinator.internal_log import InternalLog
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext, RuntimeConfig
from kbroker.coordinator.runtime.coordinator_runtime import Coordinator
from kbroker.coordinator.runtime.operation import SHARED, CoordinatorResult, LockMode, RecordProducer, Respond
from kbroker.coordinator.runtime.write_event import complete
from kbroker.metadata.image import MetadataDelta, MetadataImage
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k15_groups import ListedGroup

T = TypeVar("T")
K = TypeVar("K", bound="GroupKind[Any]")

MINUTE_MS = 60_000
# Compressed records have this size at most before they are compressed.
MAX_COMPRESSED_COMMIT_BYTES = 24 << 20
# The sizes of commits with fewer offsets are not checked.
SMALL_COMMIT = 64


class GroupCoordinator(Coordinator[GroupShard]):
    """Schedules operations on the groups of this broker.

    Methods, or the futures that they return, raise KafkaError with the code for the client. The future of a write is
    done when its records are committed.
    """

    topic = GROUP_METADATA_TOPIC

    def __init__(
        self,
        environment: Environment,
        internal_log: InternalLog,
        metadata: MetadataImage,
        config: Callable[[], BrokerConfig],
        kinds: Sequence[type[GroupKind[Any]]] = GROUP_KINDS,
    ) -> None:
        super().__init__(environment, internal_log, metadata, config)
        self.kinds = tuple(kinds)
        self.type_names = frozenset(kind.type_name for kind in kinds)
        self._repeat("offset expiration", lambda: config().offsets_retention_check_interval_ms, self._expire_offsets)

    def _make_shard(self, context: CoordinatorContext[GroupShard]) -> GroupShard:
        return GroupShard(self._environment, self._config, self._metadata, context, self.kinds)

    def _runtime_config(self, config: BrokerConfig) -> RuntimeConfig:
        return RuntimeConfig(
            node_id=config.node_id,
            partition_count=config.offsets_topic_num_partitions,
            max_batch_bytes=config.message_max_bytes,
            load_buffer_bytes=config.offsets_load_buffer_size,
            compression_codec=config.offsets_topic_compression_codec,
            append_linger_ms=config.group_coordinator_append_linger_ms,
        )

    def on_delta(self, delta: MetadataDelta) -> None:
        super().on_delta(delta)
        topics = [topic.name for topic in delta.deleted]
        if topics:
            for context in self.runtime.contexts():
                context.shard.on_topics_deleted(topics)
        removed = removed_partitions(self._metadata, delta)
        if removed:
            for context in self.runtime.contexts():
                context.shard.on_partitions_removed(removed)
        if delta.created or delta.updated or delta.deleted:
            changed = changed_topics(self._metadata, delta)
            for context in self.runtime.contexts():
                context.shard.on_delta(delta, changed)

    # Operations of a kind of group, which API handlers schedule.

    def shard(self, group_id: str) -> GroupShard:
        """Return the loaded partition of a group. Raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        return self.runtime.context(group_id).shard

    def write(self, group_id: str, kind: type[K], operation: Callable[[K], CoordinatorResult[T]]) -> Future[T]:
        """Run an operation of a kind in the mode of the kind. Returns a future of its response.

        An operation without records is a read: its response has nothing that is not committed. Handlers call
        `check_enabled` before. What was begun goes on without, and a group can be deleted.
        """
        return self.runtime.context(group_id).schedule_write(
            lambda shard: operation(shard.kind(kind)),
            group_id,
            kind.mode,
            self._config().offsets_commit_timeout_ms,
        )

    def check_enabled(self, kind: type[GroupKind[Any]], message: str | None = None) -> None:
        """Raise UNSUPPORTED_VERSION if the cluster has not finalized the feature of a kind, or a config lacks the kind.

        Brokers that do not know the kind's records may be elected without the feature, and would lose the groups.
        """
        if kind.is_configured and kind.type_name not in self._config().group_coordinator_rebalance_protocols:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        if kind.feature is not None:
            name, level = kind.feature
            if self._metadata.features.levels.get(name, 0) < level:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)

    def call(
        self,
        group_id: str,
        operation: Callable[[ClassicMembers, Callable[[T], None]], CoordinatorResult[T | None]],
    ) -> Future[T]:
        """Run an operation of a member of the classic protocol, in the mode of the kind that its group is of then.

        It is passed the function that responds. It may respond later, so a response may wait for other members of the
        group; a result that is not None is the response.
        """
        response: Future[T] = self._environment.loop.create_future()
        self._schedule_call(self.runtime.context(group_id), group_id, operation, response)
        return response

    def _schedule_call(
        self,
        context: CoordinatorContext[GroupShard],
        group_id: str,
        operation: Callable[[ClassicMembers, Callable[[T], None]], CoordinatorResult[T | None]],
        response: Future[T],
    ) -> None:
        members = context.shard.classic_members(group_id)

        def run(shard: GroupShard) -> CoordinatorResult[T | None]:
            if shard.classic_members(group_id) is members:
                return operation(members, partial(complete, response))
            # The group has been converted while the operation waited.
            self._schedule_call(context, group_id, operation, response)
            return CoordinatorResult(None)

        context.write(run, partial(_settle, response), group_id, members.mode)

    # Offsets.

    def commit_offsets(
        self,
        group_id: str,
        committer: Committer,
        offsets: Sequence[OffsetRecord],
        respond: Respond[None],
    ) -> None:
        """Commit offsets. `respond` is called when their records are committed, or with the error."""
        max_bytes = self._max_commit_bytes(offsets)
        self.runtime.context(group_id).write(
            lambda shard: shard.commit_offsets(group_id, committer, offsets, max_bytes),
            respond,
            group_id,
            SHARED,
            self._config().offsets_commit_timeout_ms,
        )

    def commit_transactional_offsets(
        self,
        group_id: str,
        committer: Committer,
        producer: RecordProducer,
        offsets: Sequence[OffsetRecord],
    ) -> Future[None]:
        """Write offsets that take effect if the producer's transaction commits."""
        max_bytes = self._max_commit_bytes(offsets)
        return self.runtime.context(group_id).schedule_write(
            lambda shard: shard.commit_transactional_offsets(group_id, committer, offsets, max_bytes),
            group_id,
            SHARED,
            self._config().offsets_commit_timeout_ms,
            producer,
        )

    def _max_commit_bytes(self, offsets: Sequence[OffsetRecord]) -> int | None:
        """Return the size that the batch of a commit may have before it is compressed; None if it is small anyway."""
        if len(offsets) <= SMALL_COMMIT:
            return None
        config = self._config()
        if config.offsets_topic_compression_codec:
            return MAX_COMPRESSED_COMMIT_BYTES
        topic = self._metadata.topics.get(GROUP_METADATA_TOPIC)
        override = None if topic is None else topic.configs.get("max.message.bytes")
        return config.message_max_bytes if override is None else int(override)

    def fetch_offsets_at_once(
        self, group_id: str, member_id: str | None, member_epoch: int, *, require_stable: bool
    ) -> FetchedOffsets | None:
        """Return what `fetch_offsets` returns; None if that has to wait, or has to look for unstable offsets."""
        context = self.runtime.context(group_id)
        shard = context.shard
        if require_stable and (context.is_locked(group_id) or shard.offsets.pending.partitions(group_id)):
            return None
        return shard.fetch_offsets(group_id, member_id, member_epoch)

    async def fetch_offsets(
        self, group_id: str, member_id: str | None = None, member_epoch: int = -1, *, require_stable: bool
    ) -> FetchedOffsets:
        """Return the committed offsets of a group. With `require_stable`, commits in flight are included (KIP-447)."""
        context = self.runtime.context(group_id)
        if not require_stable:
            return context.shard.fetch_offsets(group_id, member_id, member_epoch)
        return await context.schedule_write(
            lambda shard: shard.fetch_stable_offsets(group_id, member_id, member_epoch),
            group_id,
            LockMode.EXCLUSIVE_AFTER_SHARED,
        )

    def delete_offsets(self, group_id: str, partitions: TopicPartitions) -> Future[list[ErrorCode]]:
        """Delete committed offsets. The response is the result of each partition."""
        return self.runtime.context(group_id).schedule_write(
            lambda shard: shard.delete_offsets(group_id, partitions), group_id, LockMode.EXCLUSIVE_AFTER_SHARED
        )

    async def _expire_offsets(self) -> None:
        """Expire offsets. It runs in turns, so that many groups do not delay requests."""
        for context in self.runtime.contexts():
            retention_ms = self._config().offsets_retention_minutes * MINUTE_MS
            for group_id in paced(list(context.shard.groups)):
                context.shard.schedule_offset_expiration(group_id, retention_ms)

    # Groups.

    def group(self, group_id: str) -> Group | None:
        """Return a group. The caller must not change it."""
        return self.runtime.context(group_id).shard.groups.get(group_id)

    async def list_groups(self) -> list[ListedGroup]:
        """Return this broker's groups. Raises COORDINATOR_LOAD_IN_PROGRESS while not all are loaded."""
        self.runtime.loaded_shards()
        listed: list[ListedGroup] = []
        for context in self.runtime.contexts():
            groups = [
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type_name,
                    group_state=group.state_name,
                    group_type=group.type_name,
                )
                for group in paced(list(context.shard.groups.values()))
            ]
            try:
                await context.wait_until_committed()
            except KafkaError:
                # This broker has lost the partition: the new coordinator lists its groups.
                continue
            listed += groups
        return listed

    def delete_group(self, group_id: str) -> Future[None]:
        """Delete a group without members, and its offsets."""
        return self.runtime.context(group_id).schedule_write(
            lambda shard: shard.delete_group(group_id), group_id, LockMode.EXCLUSIVE_AFTER_SHARED
        )


def _settle(response: Future[T], result: T | None, error: KafkaError | None) -> None:
    """Respond with the result of an operation, or the error with which it or its write failed.

    An operation that has no result responds itself.
    """
    if error is not None and not response.done():
        response.set_exception(error)
    elif result is not None:
        complete(response, result)
