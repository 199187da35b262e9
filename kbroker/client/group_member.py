"""A member of a classic consumer group (KIP-62), without static membership. Its assignor is Kafka's range assignor."""

from collections.abc import Mapping, Sequence
from time import monotonic

from kbroker.client.admin import describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.groups import commit_offsets
from kbroker.client.requests import by_topic, check
from kbroker.client.retries import Retries
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, error_name
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

PROTOCOL_TYPE, RANGE = "consumer", "range"
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 45_000, 300_000
JOIN_TIMEOUT_S = REBALANCE_TIMEOUT_MS / 1000 + 5
HEARTBEAT_EVERY_S = 3.0
FIRST_WITH_MEMBERS = 3  # of LeaveGroup
# With these errors the member joins again.
_REJOIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
# The version of subscriptions and assignments, which precedes them. Later ones only add fields.
_VERSION = bytes(2)


def range_assignment(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign each topic's partitions in ranges to the members that subscribe to it, in order of their ids."""
    assignment: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic, count in sorted(partition_counts.items()):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        start = 0
        for number, member in enumerate(members):
            size = count // len(members) + (number < count % len(members))
            assignment[member] += [TopicPartition(topic, index) for index in range(start, start + size)]
            start += size
    return assignment


class BlockingMember:
    """Call `join`, then `heartbeat` at least each few seconds; when that is false, `join` again."""

    def __init__(self, cluster: ClusterClient, group: str, topics: Sequence[str]) -> None:
        self.member_id = ""
        self.generation = -1
        self._cluster, self._group, self._topics = cluster, group, sorted(set(topics))
        self._subject = f"group {group}"
        self._heartbeat_at = 0.0

    def join(self) -> list[TopicPartition]:
        """Join the group, wait until all members have, and return the assigned partitions.

        Raises BrokerError, BrokerUnreachable.
        """
        # A coordinator that cannot write refuses each new member id as an unknown one.
        retries = Retries(self._cluster.on_wait, JOIN_TIMEOUT_S)
        while True:
            joined = self._join()
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            code = joined.error_code
            if not code:
                self.member_id, self.generation = joined.member_id, joined.generation_id
                synced = self._sync(joined)
                code = synced.error_code
                if not code:
                    self._heartbeat_at = monotonic() + HEARTBEAT_EVERY_S
                    return _decode_assignment(synced.assignment)
            if not self._must_rejoin(code) or not retries.again(f"{self._subject}: {error_name(code)}"):
                check(code, self._subject)

    def heartbeat(self) -> bool:
        """Send a heartbeat if one is due. Returns False if the member must join again."""
        if monotonic() < self._heartbeat_at:
            return True
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self.member_id)
        response = self._cluster.coordinated(self._group, request, HeartbeatResponse, _error_code)
        self._heartbeat_at = monotonic() + HEARTBEAT_EVERY_S
        if self._must_rejoin(response.error_code):
            return False
        check(response.error_code, self._subject)
        return True

    def commit(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit offsets. Returns False if the member must join again: the partitions may belong to others by now."""
        codes = commit_offsets(self._cluster, self._group, offsets, self.generation, self.member_id) if offsets else {}
        for partition, code in codes.items():
            if self._must_rejoin(code):
                return False
            check(code, f"{self._subject}, {partition}")
        return True

    def leave(self) -> None:
        """Leave the group, so that others get the partitions at once."""
        request = LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(member_id=self.member_id)])
        if self._cluster.version(ApiKey.LEAVE_GROUP) < FIRST_WITH_MEMBERS:
            request = LeaveGroupRequest(group_id=self._group, member_id=self.member_id)
        self._cluster.coordinated(self._group, request, LeaveGroupResponse, _error_code)

    def _must_rejoin(self, code: int) -> bool:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        return code in _REJOIN

    def _join(self) -> JoinGroupResponse:
        subscription = _VERSION + encode(ConsumerProtocolSubscription(topics=self._topics), 0)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[JoinGroupRequestProtocol(name=RANGE, metadata=subscription)],
        )
        return self._cluster.coordinated(self._group, request, JoinGroupResponse, _error_code, timeout_s=JOIN_TIMEOUT_S)

    def _sync(self, joined: JoinGroupResponse) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=self._assignments(joined) if joined.leader == self.member_id else [],
        )
        return self._cluster.coordinated(self._group, request, SyncGroupResponse, _error_code, timeout_s=JOIN_TIMEOUT_S)

    def _assignments(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """Return the assignments that the leader of a generation makes. Raises MalformedError."""
        subscriptions = {
            member.member_id: decode(ConsumerProtocolSubscription, member.metadata, 0, len(_VERSION)).topics
            for member in joined.members
        }
        topics = sorted({topic for subscribed in subscriptions.values() for topic in subscribed})
        counts = {topic.name: len(topic.partitions) for topic in describe_topics(self._cluster, topics)}
        rows = []
        for member, partitions in range_assignment(subscriptions, counts).items():
            assigned = [AssignedTopic(topic=name, partitions=each) for name, each in by_topic(partitions).items()]
            data = _VERSION + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), 0)
            rows.append(SyncGroupRequestAssignment(member_id=member, assignment=data))
        return rows


def _decode_assignment(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    rows = decode(ConsumerProtocolAssignment, data, 0, len(_VERSION)).assigned_partitions
    return [TopicPartition(row.topic, index) for row in rows for index in row.partitions]


def _error_code(response: JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse) -> int:
    return response.error_code
