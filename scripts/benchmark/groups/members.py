"""Members of groups as clients see them: what each sends next, and what a response means for it.

They use almost no processor time, so that a thousand of them fit into one process. An error ends the benchmark, except
those that every client retries.
"""

import uuid
from collections.abc import Callable, Iterable
from enum import Enum, auto

from protocol.client import Response
from protocol.errors import ErrorCode
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
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from protocol.messages.k76_share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from protocol.schema.message import Message
from scripts.benchmark.capacity.server import TEMPORARY
from scripts.benchmark.clients import check

JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2
TIMEOUT_MS = 120_000
ACCEPT = 1
# The defaults of the Java consumer.
MAX_WAIT_MS, MAX_BYTES, MAX_RECORDS = 500, 50 << 20, 500

# Called with a member and the partitions that it has now.
OnAssigned = Callable[["ConsumerMember", frozenset[int]], None]


class Member:
    """`is_settled`: it has nothing to send before its next heartbeat."""

    is_settled = False

    def request(self) -> Message:
        raise NotImplementedError

    def receive(self, response: Response) -> None:
        raise NotImplementedError


class ConsumerMember(Member):
    """A member of a consumer group that subscribes to one topic. `instance_id`: that of a static member."""

    is_gone = False

    def __init__(self, group_id: str, topic: str, assignor: str | None = None, instance_id: str | None = None) -> None:
        self.partitions: frozenset[int] = frozenset()
        self.heartbeats = 0
        self.on_assigned: OnAssigned | None = None
        self._group_id = group_id
        self._topic = topic
        self._topic_id = b""
        self._assignor = assignor
        self._instance_id = instance_id
        self.restart()

    def restart(self) -> None:
        """Join as another process does: with another member id."""
        self._member_id = str(uuid.uuid4())
        self.epoch = JOIN
        self.is_settled = self.is_gone = False

    def leave(self) -> None:
        self.epoch = LEAVE if self._instance_id is None else LEAVE_STATIC

    def request(self) -> Message:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id, member_id=self._member_id, member_epoch=self.epoch, instance_id=self._instance_id
        )
        if self.epoch == JOIN:
            request.rebalance_timeout_ms = TIMEOUT_MS
            request.subscribed_topic_names = [self._topic]
            request.server_assignor = self._assignor
            request.topic_partitions = []
        elif not self.is_settled:
            row = ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=self._topic_id, partitions=sorted(self.partitions)
            )
            request.topic_partitions = [row] if self.partitions else []
        return request

    def receive(self, response: Response) -> None:
        self.update(response.decode(ConsumerGroupHeartbeatResponse))

    def update(self, response: ConsumerGroupHeartbeatResponse | ShareGroupHeartbeatResponse) -> None:
        if response.error_code in TEMPORARY:
            return
        if self.epoch < JOIN and response.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
            # The session may have ended while others left.
            self.is_settled = self.is_gone = True
            return
        check(response.error_code, f"{self._group_id}: {response.error_message}")
        self.heartbeats += 1
        self.epoch = response.member_epoch
        former = self.partitions
        if response.assignment is not None:
            rows = response.assignment.topic_partitions
            self.partitions = frozenset(index for row in rows for index in row.partitions)
            if rows:
                self._topic_id = rows[0].topic_id
        self.is_settled = self.partitions == former
        if self.on_assigned is not None and not self.is_settled:
            self.on_assigned(self, self.partitions - former)


class ShareMember(ConsumerMember):
    """A member of a share group that subscribes to one topic."""

    def request(self) -> Message:
        names = [self._topic] if self.epoch == JOIN else None
        return ShareGroupHeartbeatRequest(
            group_id=self._group_id, member_id=self._member_id, member_epoch=self.epoch, subscribed_topic_names=names
        )

    def receive(self, response: Response) -> None:
        self.update(response.decode(ShareGroupHeartbeatResponse))

    def consumer(self) -> "ShareConsumer":
        return ShareConsumer(self._group_id, self._member_id, self._topic_id, self.partitions)


class ShareConsumer(Member):
    """Fetches the partitions of a member of a share group, and accepts all records with its next request."""

    def __init__(self, group_id: str, member_id: str, topic_id: bytes, partitions: Iterable[int]) -> None:
        self.accepted = 0
        self._group_id = group_id
        self._member_id = member_id
        self._topic_id = topic_id
        self._epoch = 0
        self._rows = [FetchPartition(partition_index=index) for index in partitions]

    def request(self) -> Message:
        topics = [FetchTopic(topic_id=self._topic_id, partitions=self._rows)] if self._rows else []
        return ShareFetchRequest(
            group_id=self._group_id, member_id=self._member_id, share_session_epoch=self._epoch, topics=topics,
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=MAX_BYTES, max_records=MAX_RECORDS, batch_size=MAX_RECORDS,
        )  # fmt: skip

    def receive(self, response: Response) -> None:
        message = response.decode(ShareFetchResponse)
        check(message.error_code, f"{self._group_id}: {message.error_message}")
        sent, self._rows, self._epoch = self._rows, [], self._epoch + 1
        for partition in [partition for topic in message.responses for partition in topic.partitions]:
            check(partition.error_code or partition.acknowledge_error_code, f"{self._group_id}: ShareFetch")
            batches = [
                AcknowledgementBatch(
                    first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=[ACCEPT]
                )
                for each in partition.acquired_records
            ]
            if batches:
                index = partition.partition_index
                self._rows.append(FetchPartition(partition_index=index, acknowledgement_batches=batches))
        for batch in [batch for row in sent for batch in row.acknowledgement_batches]:
            self.accepted += batch.last_offset - batch.first_offset + 1


class Step(Enum):
    """What a member of a classic group sends next."""

    JOIN = auto()
    SYNC = auto()
    HEARTBEAT = auto()
    LEAVE = auto()


class ClassicMember(Member):
    """A member of a classic group; the leader assigns one partition to each member."""

    is_gone = False

    def __init__(self, group_id: str) -> None:
        self.generation = self.size = -1
        self._group_id = group_id
        self._member_id = ""
        self._members: list[str] = []
        self._step = Step.JOIN

    def leave(self) -> None:
        self._step = Step.LEAVE

    def request(self) -> Message:
        group_id, member_id, generation = self._group_id, self._member_id, self.generation
        if self._step is Step.JOIN:
            return JoinGroupRequest(
                group_id=group_id, member_id=member_id, session_timeout_ms=TIMEOUT_MS, rebalance_timeout_ms=TIMEOUT_MS,
                protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(30))],
            )  # fmt: skip
        if self._step is Step.SYNC:
            rows = [SyncGroupRequestAssignment(member_id=id, assignment=bytes(30)) for id in self._members]
            return SyncGroupRequest(
                group_id=group_id, member_id=member_id, generation_id=generation, protocol_type="consumer",
                protocol_name="range", assignments=rows,
            )  # fmt: skip
        if self._step is Step.LEAVE:
            return LeaveGroupRequest(group_id=group_id, members=[MemberIdentity(member_id=member_id)])
        return HeartbeatRequest(group_id=group_id, member_id=member_id, generation_id=generation)

    def receive(self, response: Response) -> None:
        if self._step is Step.JOIN:
            self._on_joined(response.decode(JoinGroupResponse))
        elif self._step is Step.LEAVE:
            check(response.decode(LeaveGroupResponse).error_code, self._group_id)
            self.is_settled = self.is_gone = True
        elif self._step is Step.SYNC:
            self._on_alive(response.decode(SyncGroupResponse).error_code)
        else:
            self._on_alive(response.decode(HeartbeatResponse).error_code)

    def _on_joined(self, response: JoinGroupResponse) -> None:
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
        elif response.error_code not in TEMPORARY:
            check(response.error_code, self._group_id)
            self._member_id, self.generation = response.member_id, response.generation_id
            self._members = [member.member_id for member in response.members]
            self.size = max(self.size, len(self._members))
            self._step = Step.SYNC

    def _on_alive(self, code: int) -> None:
        self.is_settled = not code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._step = Step.JOIN
        else:
            check(code, self._group_id)
            self._step = Step.HEARTBEAT
