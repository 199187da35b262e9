"""A member of a consumer group on the classic protocol.

It joins, sends heartbeats in a background task, and rejoins when a rebalance begins. It commits only offsets of
records that it has returned to the application. It recovers from an old generation, an unknown member id and a lost
coordinator. Only a fenced static member (KIP-345) cannot continue: FencedError.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from kbroker.client.requests import by_topic
from kbroker.simulation.checker.history import History, Join, Outcome, Read, TopicPartition
from kbroker.simulation.clients.cluster import COORDINATOR_MOVED, Cluster, RefusedError
from kbroker.simulation.clients.connection import STATIC_MEMBERS, SimClientConnection
from kbroker.simulation.clients.consumer import Consumer, Position
from kbroker.simulation.clients.group_offsets import (
    GroupOffsets,
    Membership,
    OffsetAndEpoch,
    start_offsets,
)
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.consumer_protocol import AssignedTopic, ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from protocol.schema.codec import decode, encode

PROTOCOL_TYPE = "consumer"
UNKNOWN_MEMBER = ""
NO_GENERATION = -1
FIRST_LEAVE_WITH_MEMBERS = 3


class FencedError(Exception):
    """Another member has joined with the same instance id."""


@dataclass(slots=True)
class MemberConfig:
    """`instance_id`: makes it a static member. `assignors`: in order of preference.

    `commits`: commit before rejoining. False for a member whose offsets are committed in transactions.
    """

    instance_id: str | None = None
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 20_000
    heartbeat_s: float = 2.0
    metadata_age_s: float = 6.0
    assignors: Sequence[str] = ("range", "roundrobin")
    commits: bool = True

    @classmethod
    def draw(cls, random: Random, *, instance_id: str | None = None, commits: bool = True) -> "MemberConfig":
        session_s = random.choice((6, 10))
        return cls(
            instance_id=instance_id,
            session_timeout_ms=session_s * 1000,
            rebalance_timeout_ms=random.choice((8_000, 15_000)),
            heartbeat_s=session_s / random.choice((4, 6)),
            assignors=random.sample(list(ASSIGNORS), 2),
            commits=commits,
        )


class Member:
    """A group member. It alone assigns partitions to `consumer`."""

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
        self.config = config or MemberConfig()
        self.consumer = consumer
        self.member_id = UNKNOWN_MEMBER
        self.generation = NO_GENERATION
        self.fenced = False
        self._cluster: Cluster = consumer.cluster
        self._history = history
        self._process = process
        self._group = group
        self._topics = list(topics)
        self._offsets = GroupOffsets(consumer.cluster, history, process, group)
        self._random = random
        self._must_join = True
        # Whether the consumer's positions are those of partitions assigned in the current generation.
        self._owns_partitions = False
        self._counts: dict[str, int] = {}
        self._heartbeat_task: asyncio.Task[None] | None = None

    # Called by the application.

    async def poll(self) -> list[Read]:
        """Return the next records. Raises FencedError, CorruptRecordError."""
        if self._must_join and not await self._rejoin():
            return []
        if self.fenced:
            raise FencedError(self.config.instance_id)
        return await self.consumer.poll()

    async def commit(self) -> bool:
        """Make one attempt to commit the positions. Returns whether it is known to have succeeded."""
        positions = self.consumer.committable()
        if not positions or not self._owns_partitions:
            return False
        # Taken before the coordinator lookup, during which a heartbeat may end the generation.
        membership = Membership(self.generation, self.member_id, self.config.instance_id)
        error = await self._offsets.commit(positions, membership)
        if error is not None:
            self._handle_error(error)
        return error is ErrorCode.NONE

    def membership_and_positions(self) -> tuple[Membership, dict[TopicPartition, OffsetAndEpoch]]:
        """Return what a transaction has to commit. No positions if the partitions may be another member's."""
        membership = Membership(self.generation, self.member_id, self.config.instance_id)
        return membership, self.consumer.committable() if self._owns_partitions else {}

    async def reset_to_committed(self) -> None:
        """Reset the positions to the committed offsets, after an aborted transaction."""
        if self._owns_partitions:
            self._owns_partitions = False
            await self._start_at_committed(list(self.consumer.positions))

    async def leave(self) -> None:
        """Send LeaveGroup if the coordinator is reachable, and close.

        A static member calls this only if it will not return.
        """
        self._stop_heartbeats()
        with suppress(OSError):
            if self.member_id != UNKNOWN_MEMBER:
                coordinator = await self._offsets.coordinator()
                request = LeaveGroupRequest(group_id=self._group)
                if coordinator.version(ApiKey.LEAVE_GROUP) >= FIRST_LEAVE_WITH_MEMBERS:
                    identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.config.instance_id)
                    request.members = [identity]
                else:
                    request.member_id = self.member_id
                await coordinator.request(request, LeaveGroupResponse)
        self.close_without_leaving()

    def close_without_leaving(self) -> None:
        """Close without LeaveGroup, as a crashed client does."""
        self._stop_heartbeats()
        self.consumer.close()

    # Joining.

    async def _rejoin(self) -> bool:
        """Make one attempt to join a generation. Returns whether it succeeded. Raises FencedError."""
        self._stop_heartbeats()
        if self.fenced:
            raise FencedError(self.config.instance_id)
        # Commit before another member continues from here. In the next generation the old positions are not
        # committed any more.
        if self.config.commits:
            await self.commit()
        self._owns_partitions = False
        try:
            coordinator = await self._offsets.coordinator()
        except OSError:
            await self._cluster.backoff()
            return False
        self._check_static_member_versions(coordinator)
        action = Join(self._group, self.member_id, NO_GENERATION, (), self.config.instance_id)
        operation = self._history.begin(self._process, action)
        outcome, detail = Outcome.UNKNOWN, "cancelled"
        try:
            await self._join(coordinator, action)
            outcome, detail = Outcome.OK, ""
        except RefusedError as error:
            self._handle_error(error.code)
            detail = error.code.name
        except OSError as error:
            self._offsets.disconnect()
            detail = type(error).__name__
        finally:
            self._history.end(operation, outcome, detail)
        if outcome is not Outcome.OK:
            await self._cluster.backoff()
            return False
        self._must_join = False
        self._heartbeat_task = self._cluster.loop.create_task(self._send_heartbeats())
        return await self._start_at_committed(action.partitions)

    async def _join(self, coordinator: SimClientConnection, action: Join) -> None:
        """Send JoinGroup and SyncGroup and record their result in `action`. Raises OSError, RefusedError."""
        response = await self._send_join(coordinator)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            response = await self._send_join(coordinator)
        if response.error_code:
            raise RefusedError(response.error_code)
        self.member_id = action.member = response.member_id
        self.generation = action.generation = response.generation_id
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=response.protocol_name,
        )
        if response.leader == response.member_id and not response.skip_assignment:
            request.assignments = await self._assignments(response)
        synced = await coordinator.request(request, SyncGroupResponse, timeout_s=self._join_timeout_s)
        if synced.error_code:
            raise RefusedError(synced.error_code)
        action.partitions = tuple(decode_assignment(synced.assignment))

    async def _send_join(self, coordinator: SimClientConnection) -> JoinGroupResponse:
        metadata = encode_subscription(self._topics)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self.config.session_timeout_ms,
            rebalance_timeout_ms=self.config.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in self.config.assignors],
        )
        return await coordinator.request(request, JoinGroupResponse, timeout_s=self._join_timeout_s)

    async def _assignments(self, response: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Compute the assignments of all members, as the group's leader."""
        topics = {member.member_id: decode_subscription(member.metadata) for member in response.members}
        await self._cluster.refresh_metadata(sorted({topic for subscribed in topics.values() for topic in subscribed}))
        self._counts = dict(self._cluster.partition_counts)
        assignments = ASSIGNORS[response.protocol_name or ""](topics, self._counts)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in assignments.items()
        ]

    @property
    def _join_timeout_s(self) -> float:
        """The timeout of JoinGroup, whose response may take as long as the rebalance timeout."""
        return self.config.rebalance_timeout_ms / 1000 + 5

    def _check_static_member_versions(self, coordinator: SimClientConnection) -> None:
        if self.config.instance_id is not None:
            for key, first in STATIC_MEMBERS.items():
                assert coordinator.version(key) >= first, f"{ApiKey(key).name} does not know of static members"

    async def _start_at_committed(self, partitions: Sequence[TopicPartition]) -> bool:
        """Start at the committed offsets. Returns whether the member is still in its generation."""
        while not self._must_join and not self.fenced:
            try:
                starts = await self._committed_positions(partitions)
            except RefusedError as error:
                self._handle_error(error.code)
            except OSError:
                self._offsets.disconnect()
            else:
                self.consumer.assign(starts, "rebalance")
                self._owns_partitions = self.generation != NO_GENERATION
                return True
            await self._cluster.backoff()
        return False

    async def _committed_positions(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the committed offsets, or else the log start offsets. Raises OSError, RefusedError."""
        if not partitions:
            return {}
        await self._cluster.refresh_metadata(list(dict.fromkeys(topic for topic, _ in partitions)))
        committed = await self._offsets.committed(partitions)
        starts = await start_offsets(self._cluster, partitions, committed)
        return {tp: Position(*start) for tp, start in starts.items()}

    def _handle_error(self, code: ErrorCode) -> None:
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._must_join = True
        elif code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self._must_join = True
            self._owns_partitions = False
            self.generation = NO_GENERATION
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = UNKNOWN_MEMBER
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif code in COORDINATOR_MOVED:
            self._offsets.disconnect()

    # In the background.

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until the generation ends. The leader also checks for new partitions."""
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.config.instance_id,
        )
        checked_at = self._cluster.loop.time()
        while not self._must_join and not self.fenced:
            await asyncio.sleep(self.config.heartbeat_s * self._random.uniform(0.8, 1.0))
            try:
                coordinator = await self._offsets.coordinator()
                timeout_s = self.config.session_timeout_ms / 2000
                response = await coordinator.request(request, HeartbeatResponse, timeout_s=timeout_s)
                if response.error_code:
                    self._handle_error(ErrorCode(response.error_code))
                elif self._counts and self._cluster.loop.time() - checked_at >= self.config.metadata_age_s:
                    checked_at = self._cluster.loop.time()
                    await self._check_partition_counts()
            except OSError:
                self._offsets.disconnect()

    async def _check_partition_counts(self) -> None:
        await self._cluster.refresh_metadata(sorted(self._counts))
        if any(self._cluster.partition_counts[topic] != count for topic, count in self._counts.items()):
            self._must_join = True

    def _stop_heartbeats(self) -> None:
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            self._heartbeat_task = None


# Consumer group assignors, and the encoding of subscriptions and assignments.

# (subscribed topics by member, partition counts by topic) -> assigned partitions by member.
Assignor = Callable[[Mapping[str, Sequence[str]], Mapping[str, int]], dict[str, list[TopicPartition]]]

# The version of encoded subscriptions and assignments. All versions can be decoded.
VERSION = 0
VERSION_SIZE = 2
PREFIX = VERSION.to_bytes(VERSION_SIZE, "big")


def range_assignor(topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Assign consecutive partitions of each topic; the first members get one more if the count is uneven."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(topics)}
    for topic in sorted({topic for subscribed in topics.values() for topic in subscribed}):
        members = [member for member in assigned if topic in topics[member]]
        share, remainder = divmod(counts.get(topic, 0), len(members))
        first = 0
        for number, member in enumerate(members):
            size = share + (number < remainder)
            assigned[member] += [(topic, index) for index in range(first, first + size)]
            first += size
    return assigned


def round_robin_assignor(
    topics: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign partitions one by one, each to the next member that subscribes to its topic."""
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(topics)}
    members = list(assigned)
    position = 0
    for topic in sorted({topic for subscribed in topics.values() for topic in subscribed}):
        for index in range(counts.get(topic, 0)):
            while topic not in topics[members[position % len(members)]]:
                position += 1
            assigned[members[position % len(members)]].append((topic, index))
            position += 1
    return assigned


ASSIGNORS: dict[str, Assignor] = {"range": range_assignor, "roundrobin": round_robin_assignor}


def encode_subscription(topics: Sequence[str]) -> bytes:
    return PREFIX + encode(ConsumerProtocolSubscription(topics=list(topics)), VERSION)


def decode_subscription(data: bytes) -> list[str]:
    """Return the topics of a subscription. Raises MalformedError."""
    version = min(int.from_bytes(data[:VERSION_SIZE], "big"), 3)
    return decode(ConsumerProtocolSubscription, data, version, VERSION_SIZE).topics


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    topics = [AssignedTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic(partitions).items()]
    return PREFIX + encode(ConsumerProtocolAssignment(assigned_partitions=topics), VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Return the partitions of an assignment, none for empty bytes. Raises MalformedError."""
    if not data:
        return []
    version = min(int.from_bytes(data[:VERSION_SIZE], "big"), 3)
    assignment = decode(ConsumerProtocolAssignment, data, version, VERSION_SIZE)
    return [(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions]
