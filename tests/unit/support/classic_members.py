"""Members of the classic protocol as a client library keeps them, for tests. They use the eager protocol."""

import asyncio
from typing import Any

from kbroker.coordinator.group.classic.embedded_protocol import decode_assignment, decode_subscription
from kbroker.coordinator.group.records import encode_with_version
from protocol.errors import ErrorCode
from protocol.messages.consumer_protocol import AssignedTopic, ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.unit.support.consumer_members import REBALANCE_MS, Partition
from tests.unit.support.group_coordinator import Harness

SESSION_MS = 3_000
VERSION = 1


class ClassicModelMember:
    """A member of the group "g": its next step is a JoinGroup, a SyncGroup or a Heartbeat.

    `owned`: the partitions that the application reads. It stops before it joins again.
    """

    def __init__(self, topics: set[str], instance_id: str | None = None) -> None:
        self.topics = topics
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.owned: set[Partition] = set()
        self._joined: JoinGroupResponse | None = None
        self._waiting: asyncio.Task[Any] | None = None

    @property
    def is_stable(self) -> bool:
        return self.generation >= 0 and self._joined is None and self._waiting is None

    def step(self, broker: Harness) -> None:
        """Handle the response that has come, or send the next request."""
        if self._waiting is None:
            self._send(broker)
        if self._waiting is not None and self._waiting.done():
            response, self._waiting = self._waiting.result(), None
            handle = {JoinGroupRequest: self._on_joined, SyncGroupRequest: self._on_synced}
            handle.get(self._sent, self._on_heartbeat)(broker, response)

    def _send(self, broker: Harness) -> None:
        if self._joined is not None:
            request, version = self._sync(broker, self._joined), 5
        elif self.generation < 0:
            request, version = self._join(), 9
        else:
            request, version = self._heartbeat(), 4
        self._sent = type(request)
        self._waiting = broker.start(request, version)

    def _join(self) -> JoinGroupRequest:
        subscription = ConsumerProtocolSubscription(topics=sorted(self.topics))
        protocol = JoinGroupRequestProtocol(name="range", metadata=encode_with_version(subscription, VERSION))
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[protocol],
        )

    def _sync(self, broker: Harness, joined: JoinGroupResponse) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=_assign(broker, joined) if joined.leader == self.member_id else [],
        )

    def _heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id, group_instance_id=self.instance_id
        )

    def _on_joined(self, broker: Harness, response: JoinGroupResponse) -> None:
        error = ErrorCode(response.error_code)
        if error is ErrorCode.NONE:
            self.member_id, self._joined = response.member_id, response
        elif error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        else:
            self._lose(error)

    def _on_synced(self, broker: Harness, response: Any) -> None:
        joined, self._joined = self._joined, None
        assert joined is not None
        if response.error_code != ErrorCode.NONE:
            self._lose(ErrorCode(response.error_code))
            return
        self.generation = joined.generation_id
        topics = broker.metadata.topics
        self.owned = {
            (topics[topic.topic].topic_id, index)
            for topic in decode_assignment(response.assignment).assigned_partitions
            if topic.topic in topics
            for index in topic.partitions
        }

    def _on_heartbeat(self, broker: Harness, response: Any) -> None:
        if response.error_code != ErrorCode.NONE:
            self._lose(ErrorCode(response.error_code))

    def _lose(self, error: ErrorCode) -> None:
        """Stop to read, and join again, as a new member if the coordinator does not know this one."""
        self.generation, self.owned, self._joined = -1, set(), None
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""

    def leave(self, broker: Harness) -> None:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        broker.start(LeaveGroupRequest(group_id="g", members=[identity]), 5)
        self._lose(ErrorCode.UNKNOWN_MEMBER_ID)


def _assign(broker: Harness, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
    """Return the assignments of a leader: each topic's partitions in turn to its subscribers."""
    subscriptions = {member.member_id: decode_subscription(member.metadata).topics for member in joined.members}
    assignments: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in subscriptions}
    for name in sorted(
        {topic for topics in subscriptions.values() for topic in topics} & broker.metadata.topics.keys()
    ):
        subscribers = [member_id for member_id, topics in subscriptions.items() if name in topics]
        for index in range(len(broker.metadata.topics[name].partitions)):
            assignments[subscribers[index % len(subscribers)]].setdefault(name, []).append(index)
    return [
        SyncGroupRequestAssignment(
            member_id=member_id,
            assignment=encode_with_version(
                ConsumerProtocolAssignment(
                    assigned_partitions=[
                        AssignedTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()
                    ]
                ),
                VERSION,
            ),
        )
        for member_id, topics in assignments.items()
    ]
