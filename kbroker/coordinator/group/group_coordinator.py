"""The group coordinator: which groups are this broker's, their deadlines, and what handlers ask of them.

A group lives in the partition of __consumer_offsets that its id hashes to, on the broker that leads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group import operations
from kbroker.coordinator.group.classic.sync import heartbeat
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC
from kbroker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime, answer_to
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.timer import DeadlineTimer
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from kbroker.coordinator.group.classic.classic_group import ClassicGroup
    from kbroker.coordinator.group.classic.requests import (
        JoinRequest,
        JoinResponse,
        LeavingMember,
        SyncRequest,
        SyncResponse,
    )
    from kbroker.coordinator.group.offsets.group_offsets import GroupOffsets
    from kbroker.coordinator.group.records import OffsetAndMetadata
    from kbroker.coordinator.internal_log import Config, InternalLog, TransactionMarker
    from kbroker.coordinator.runtime.batches import Producer
    from kbroker.metadata.image import MetadataDelta, MetadataImage
    from kbroker.runtime.environment import Environment
    from kbroker.storage.producers.verification import VerificationGuard

T = TypeVar("T")
log = EventLogger("kbroker.groups")

MINUTE_MS = 60_000
# What who writes markers is told instead of a coordinator's errors.
NOT_COORDINATING = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


class GroupCoordinator:
    """Operations raise KafkaError with the code for the client. Those that write return when it is
    committed.
    """

    def __init__(
        self, environment: Environment, replicas: InternalLog, metadata: MetadataImage, config: Callable[[], Config]
    ) -> None:
        self._environment = environment
        self._log = replicas
        self._metadata = metadata
        self._config = config
        self._owned = CoordinatorRuntime(
            environment,
            metadata,
            GROUP_METADATA_TOPIC,
            lambda: config().node_id,
            lambda: config().offsets_topic_num_partitions,
            self._make,
        )
        # Of every group with something due, when.
        self._alarm: DeadlineTimer[str] = DeadlineTimer(environment, self._expire)
        self._cleanup: TimerHandle | None = None

    def _make(self, tp: TopicPartition, epoch: int) -> GroupShard:
        return GroupShard(self._environment, self._log, tp, epoch, self._config, self._moved)

    # Which groups.

    def partition_for(self, group_id: str) -> int:
        """The partition of __consumer_offsets that a group belongs to."""
        return self._owned.partition_for(group_id)

    async def start(self) -> None:
        """Take over the partitions that this broker leads, and begin to forget what expires."""
        self._owned.start()
        self._schedule_cleanup()

    async def stop(self) -> None:
        self._alarm.stop()
        if self._cleanup is not None:
            self._cleanup.cancel()
        self._owned.stop()

    async def on_delta(self, delta: MetadataDelta) -> None:
        """Follow leaders and deletions. Loading goes on after this returns."""
        self._owned.on_delta(delta)
        if delta.deleted:
            self.on_topics_deleted([topic.name for topic in delta.deleted])

    async def loaded(self, group_id: str) -> None:
        """Returns when the group's partition is loaded, if it is ours."""
        await self._owned.loaded(group_id)

    # Members.

    async def join(self, request: JoinRequest) -> JoinResponse:
        config = self._config()
        if request.reason is not None:
            log.info("member joins", group=request.group_id, member=request.member_id or None, reason=request.reason)
        answer: Future[JoinResponse] = self._environment.loop.create_future()
        shard = self._owned.active(request.group_id)
        shard.enter(request.group_id, partial(operations.run_join, shard, config, request, partial(answer_to, answer)))
        return await answer

    async def sync(self, request: SyncRequest) -> SyncResponse:
        config = self._config()
        answer: Future[SyncResponse] = self._environment.loop.create_future()
        shard = self._owned.active(request.group_id)
        shard.enter(request.group_id, partial(operations.run_sync, shard, config, request, partial(answer_to, answer)))
        return await answer

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """While the group is being loaded nobody can be told to do anything: that is NONE."""
        shard = self._owned.at(self.partition_for(group_id))
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        error = shard.inactive()
        if error is not ErrorCode.NONE:
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        group = shard.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = heartbeat(group, member_id, instance_id, generation, shard.now())
        self._moved(group)
        return error

    async def leave(self, group_id: str, leavers: list[LeavingMember]) -> list[ErrorCode]:
        """Each leaver's result."""
        config = self._config()
        for leaver in leavers:
            if leaver.reason is not None:
                who = leaver.member_id or leaver.instance_id
                log.info("member leaves", group=group_id, member=who, reason=leaver.reason)
        answer: Future[list[ErrorCode]] = self._environment.loop.create_future()
        shard = self._owned.active(group_id)
        reply, fail = partial(answer_to, answer), partial(_fail, answer)
        shard.enter(group_id, partial(operations.run_leave, shard, config, group_id, leavers, reply, fail))
        return await answer

    # Offsets.

    async def commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[tuple[str, int, OffsetAndMetadata]],
    ) -> None:
        """Commit offsets, given as (topic, partition, offset)."""
        done: Future[ErrorCode] = self._environment.loop.create_future()
        shard = self._owned.active(group_id)
        shard.enter(
            group_id,
            partial(
                operations.run_commit, shard, group_id, member_id, instance_id, generation, offsets,
                partial(answer_to, done),
            ),
        )  # fmt: skip
        await _checked(done)

    def begin_verification(self, group_id: str, producer_id: int, epoch: int) -> VerificationGuard | None:
        """What a transaction needs in its Producer for its first offsets of a group's partition, asked for before it is
        verified that this is part of it; None if the transaction is open there.
        """
        return self._log.begin_verification(self._owned.active(group_id).runtime.tp, producer_id, epoch)

    async def commit_in_transaction(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        producer: Producer,
        offsets: Sequence[tuple[str, int, OffsetAndMetadata]],
    ) -> None:
        """Write offsets, given as (topic, partition, offset), that count when the producer's transaction commits."""
        done: Future[ErrorCode] = self._environment.loop.create_future()
        shard = self._owned.active(group_id)
        shard.enter(
            group_id,
            partial(
                operations.run_commit_in_transaction, shard, group_id, member_id, instance_id, generation, producer,
                offsets, partial(answer_to, done),
            ),
        )  # fmt: skip
        await _checked(done)

    def write_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        """A MarkerWriter for the partitions of __consumer_offsets. As in Kafka the transaction coordinator hears of a
        coordinator that is not there or not loaded what it would hear of any partition.
        """
        shard = self._owned.at(tp.partition)
        if shard is None:
            known = self._metadata.partition(*tp) is not None
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif shard.inactive() is not ErrorCode.NONE:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            shard.write_marker(marker, lambda error: done(NOT_COORDINATING.get(error, error)))

    def pending_offsets(self, group_id: str) -> frozenset[tuple[str, int]]:
        """The partitions of which transactions that have not ended have written offsets."""
        return frozenset(self._owned.active(group_id).groups.pending.of_group(group_id))

    async def offsets(self, group_id: str, *, after_commits: bool) -> GroupOffsets | None:
        """A group's committed offsets. `after_commits`: with those that are being written now."""
        shard = self._owned.active(group_id)
        if after_commits:
            turn: Future[ErrorCode] = self._environment.loop.create_future()
            shard.enter(group_id, lambda: answer_to(turn, shard.inactive()), alone=True)
            await _checked(turn)
        return shard.groups.offsets.get(group_id)

    async def delete_offsets(self, group_id: str, partitions: operations.Partitions) -> list[ErrorCode]:
        """Each partition's result."""
        answer: Future[list[ErrorCode]] = self._environment.loop.create_future()
        shard = self._owned.active(group_id)
        reply, fail = partial(answer_to, answer), partial(_fail, answer)
        shard.enter(
            group_id,
            partial(operations.run_delete_offsets, shard, group_id, partitions, reply, fail),
            alone=True,
        )
        return await answer

    def on_topics_deleted(self, names: Sequence[str]) -> None:
        """Forget the offsets of deleted topics."""
        for shard in self._owned.all():
            shard.when_active(partial(self._forget_topics, shard, names))

    def _forget_topics(self, shard: GroupShard, names: Sequence[str]) -> None:
        for group_id in shard.groups_with_offsets(names):
            shard.enter(group_id, partial(operations.run_forget_topics, shard, group_id, names), alone=True)

    # Administration.

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group to look at."""
        return self._owned.active(group_id).get(group_id)

    def shards(self) -> list[GroupShard]:
        """What is known of each of this broker's partitions, for who looks at all of it."""
        return self._owned.all()

    def all_groups(self) -> Iterable[ClassicGroup]:
        """This broker's groups; raises COORDINATOR_LOAD_IN_PROGRESS while not all are known."""
        shards = self._owned.all()
        if any(shard.inactive() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for shard in shards):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return (group for shard in shards for group in shard.groups.by_id.values())

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete an empty group with its offsets."""
        done: Future[ErrorCode] = self._environment.loop.create_future()
        shard = self._owned.active(group_id)
        operation = partial(operations.run_delete_group, shard, group_id, partial(answer_to, done))
        shard.enter(group_id, operation, alone=True)
        return await done

    # Deadlines.

    def _moved(self, group: ClassicGroup) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is None:
            self._alarm.cancel(group.group_id)
        else:
            self._alarm.set(group.group_id, deadline_ms)

    def _expire(self, group_id: str) -> None:
        shard = self._owned.at(self.partition_for(group_id))
        if shard is not None:
            shard.enter(group_id, partial(operations.run_expiry, shard, self._config(), group_id))

    # Retention.

    def _schedule_cleanup(self) -> None:
        interval_ms = self._config().offsets_retention_check_interval_ms
        self._cleanup = self._environment.loop.call_later(interval_ms / 1000, self._clean_up, None)

    def _clean_up(self, left: list[GroupShard] | None) -> None:
        """One partition a turn of the loop, so that many groups do not hold up requests."""
        left = self._owned.all() if left is None else left
        if not left:
            self._schedule_cleanup()
            return
        shard = left.pop()
        if shard.inactive() is ErrorCode.NONE:
            retention_ms = self._config().offsets_retention_minutes * MINUTE_MS
            for group_id in list(shard.groups.by_id):
                shard.enter(group_id, partial(operations.run_cleanup, shard, group_id, retention_ms), alone=True)
        self._cleanup = self._environment.loop.call_later(0, self._clean_up, left)


def _fail(future: Future[T], error: ErrorCode) -> None:
    if not future.done():
        future.set_exception(KafkaError(error))


async def _checked(done: Future[ErrorCode]) -> None:
    error = await done
    if error is not ErrorCode.NONE:
        raise KafkaError(error)
