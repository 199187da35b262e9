"""A member of a consumer group on the consumer protocol (KIP-848).

It sends heartbeats in a background task, gives up the partitions that are no longer assigned to it before it says so,
and joins again when it was fenced. It commits only offsets of records that it has returned to the application.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from random import Random
from uuid import UUID

from kbroker.client.requests import by_topic
from kbroker.simulation.checker.history import Fenced, History, Own, Read, TopicPartition
from kbroker.simulation.clients.cluster import COORDINATOR_MOVED, NO_ID, RefusedError
from kbroker.simulation.clients.consumer import Consumer, Position
from kbroker.simulation.clients.group_member import FencedError, Member, MemberConfig
from kbroker.simulation.clients.group_offsets import Membership, start_offsets
from protocol.errors import ErrorCode
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
# The shortest session timeout and rebalance timeout of a run.
SHORTEST_TIMEOUT_S = 6.0
# With these errors the coordinator does not know the member.
LOST = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
REJOIN = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


class ConsumerProtocolMember(Member):
    """A group member. `generation` is its epoch. A static member that returns may have to wait for its former self."""

    def __init__(
        self,
        consumer: Consumer,
        history: History,
        process: str,
        group: str,
        topics: Sequence[str],
        random: Random,
        config: MemberConfig | None = None,
    ) -> None:
        super().__init__(consumer, history, process, group, topics, random, config)
        self.member_id = str(UUID(bytes=random.randbytes(16)))
        # The assignment in the last response, until the member has followed it.
        self._assignment: frozenset[TopicPartition] | None = None
        # The partitions in the last heartbeat that has a response; None if the next one has to say everything.
        self._acknowledged: frozenset[TopicPartition] | None = None
        # When the last heartbeat with a response was sent, if nothing had to be revoked after it.
        self._settled_s = -inf

    async def poll(self) -> list[Read]:
        """Return the next records. Raises FencedError, CorruptRecordError."""
        if self.fenced:
            raise FencedError(self.config.instance_id)
        if self._must_join and not await self._rejoin():
            return []
        if self._assignment is not None:
            await self._follow(self._assignment)
        return await self.consumer.poll()

    async def leave(self) -> None:
        self._stop_heartbeats()
        with suppress(OSError):
            request = ConsumerGroupHeartbeatRequest(
                group_id=self._group,
                member_id=self.member_id,
                member_epoch=LEAVE_EPOCH,
                instance_id=self.config.instance_id,
            )
            coordinator = await self._offsets.coordinator()
            await coordinator.request(request, ConsumerGroupHeartbeatResponse)
        self.close_without_leaving()

    # Heartbeats.

    async def _rejoin(self) -> bool:
        self._stop_heartbeats()
        self._own({})
        self._owns_partitions = False
        self.generation, self._assignment, self._acknowledged = JOIN_EPOCH, None, None
        if not await self._heartbeat():
            await self._cluster.backoff()
            return False
        self._must_join, self._owns_partitions = False, True
        self._heartbeat_task = self._cluster.loop.create_task(self._send_heartbeats())
        return True

    async def _send_heartbeats(self) -> None:
        while not self._must_join and not self.fenced:
            await asyncio.sleep(self.config.heartbeat_s * self._random.uniform(0.2, 1.0))
            await self._heartbeat()

    async def _heartbeat(self) -> bool:
        """Send one heartbeat. Returns whether it was accepted."""
        owned = frozenset(self.consumer.positions)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self.generation,
            instance_id=self.config.instance_id,
        )
        if self._acknowledged != owned:
            request.rebalance_timeout_ms = self.config.rebalance_timeout_ms
            request.subscribed_topic_names = self._topics
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequestTopicPartitions(
                    topic_id=self._cluster.topic_ids.get(name, NO_ID), partitions=indexes
                )
                for name, indexes in by_topic(owned).items()
            ]
        # If the response is lost, the next request says everything.
        was_answered, begun_s = self._acknowledged == owned, self._cluster.loop.time()
        self._acknowledged = None
        try:
            coordinator = await self._offsets.coordinator()
            timeout_s = self.config.session_timeout_ms / 2000
            response = await coordinator.request(request, ConsumerGroupHeartbeatResponse, timeout_s=timeout_s)
            if response.error_code:
                self._check_fenced(ErrorCode(response.error_code), was_answered=was_answered)
                self._handle_error(ErrorCode(response.error_code))
                return False
            assignment = response.assignment
            if assignment is not None and any(
                topic.topic_id not in self._cluster.topic_names for topic in assignment.topic_partitions
            ):
                await self._cluster.refresh_metadata(self._topics)
        except OSError:
            self._offsets.disconnect()
            return False
        self.generation, self._acknowledged = response.member_epoch, owned
        if assignment is not None:
            names = self._cluster.topic_names
            self._assignment = frozenset(
                (names[topic.topic_id], index)
                for topic in assignment.topic_partitions
                if topic.topic_id in names
                for index in topic.partitions
            )
        has_nothing_to_revoke = self._assignment is None or owned <= self._assignment
        self._settled_s = begun_s if has_nothing_to_revoke else -inf
        return True

    def _check_fenced(self, code: ErrorCode, *, was_answered: bool) -> None:
        """Record an error that no timeout explains. `was_answered`: the coordinator cannot have gone on without it."""
        silent_s = self._cluster.loop.time() - self._settled_s
        is_lost = code in LOST or (code is ErrorCode.FENCED_MEMBER_EPOCH and was_answered)
        if is_lost and self.generation != JOIN_EPOCH and silent_s < SHORTEST_TIMEOUT_S:
            self._history.record(self._process, Fenced(self._group, self.member_id, self.generation, silent_s))

    # Partitions.

    async def _follow(self, assignment: frozenset[TopicPartition]) -> None:
        """Give up partitions, after a commit, or take new ones at their committed offsets."""
        owned = self.consumer.positions.keys()
        if owned - assignment:
            await self.commit()
            if not self._must_join:
                self._own({tp: self.consumer.positions[tp] for tp in owned & assignment})
            return
        added = sorted(assignment - owned)
        try:
            await self._cluster.refresh_metadata(self._topics)
            membership = Membership(self.generation, self.member_id)
            starts = await start_offsets(self._cluster, added, await self._offsets.committed(added, membership))
        except RefusedError as error:
            # The epoch may be older than that of the coordinator. The next heartbeat brings the member up to date.
            if error.code is not ErrorCode.STALE_MEMBER_EPOCH:
                self._handle_error(error.code)
            await self._cluster.backoff()
            return
        except OSError:
            self._offsets.disconnect()
            await self._cluster.backoff()
            return
        if self._assignment == assignment and not self._must_join:
            self._assignment = None
            self._own(self.consumer.positions | {tp: Position(*start) for tp, start in starts.items()})

    def _own(self, positions: dict[TopicPartition, Position]) -> None:
        self.consumer.assign(positions, "assignment")
        self._history.record(self._process, Own(self._group, self.member_id, self.generation, tuple(positions)))

    def _handle_error(self, code: ErrorCode) -> None:
        if code in REJOIN:
            self._must_join = True
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif code in COORDINATOR_MOVED:
            self._offsets.disconnect()
