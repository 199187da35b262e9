"""JoinGroup: join a classic group, or join it again in a rebalance.

1: rebalance timeout (ms).
4: a new member gets its id first, with MEMBER_ID_REQUIRED (KIP-394).
5: static members (KIP-345).
7: protocol type and nullable protocol in responses (KIP-559).
8: reason (KIP-800).
9: the leader may skip the assignment (KIP-814).

Heartbeat: a member is alive. The response has REBALANCE_IN_PROGRESS when it must join again.

3: static members (KIP-345).

LeaveGroup: end the membership of one member, or of several from version 3 on (KIP-345).

5: reason (KIP-800).

SyncGroup: the leader sends the assignments; every member receives its own.

3: static members (KIP-345).
5: protocol type and name are checked (KIP-559).
"""

from protocol.schema.message import Message, Struct, row


class JoinGroupRequestProtocol(Struct):
    name: str = row("string", "0+")
    metadata: bytes = row("bytes", "0+")


class JoinGroupRequest(Message, key=11, kind="request", versions="0-9", flexible="6+", costly=True):
    group_id: str = row("string", "0+")
    session_timeout_ms: int = row("int32", "0+")
    rebalance_timeout_ms: int = row("int32", "1+", default=-1, ignorable=True)
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "5+", nullable="5+", default=None)
    protocol_type: str = row("string", "0+")
    protocols: list[JoinGroupRequestProtocol] = row([JoinGroupRequestProtocol], "0+")
    reason: str | None = row("string", "8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = row("bytes", "0+")


class JoinGroupResponse(Message, key=11, kind="response", versions="0-9", flexible="6+"):
    throttle_time_ms: int = row("int32", "2+", ignorable=True)
    error_code: int = row("int16", "0+")
    generation_id: int = row("int32", "0+", default=-1)
    protocol_type: str | None = row("string", "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = row("string", "0+", nullable="7+")
    leader: str = row("string", "0+")
    skip_assignment: bool = row("bool", "9+")
    member_id: str = row("string", "0+")
    members: list[JoinGroupResponseMember] = row([JoinGroupResponseMember], "0+")


class HeartbeatRequest(Message, key=12, kind="request", versions="0-4", flexible="4+"):
    group_id: str = row("string", "0+")
    generation_id: int = row("int32", "0+")
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)


class HeartbeatResponse(Message, key=12, kind="response", versions="0-4", flexible="4+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "0+")


class MemberIdentity(Struct):
    member_id: str = row("string", "3+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)
    reason: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Message, key=13, kind="request", versions="0-5", flexible="4+", costly=True):
    group_id: str = row("string", "0+")
    member_id: str = row("string", "0-2")
    members: list[MemberIdentity] = row([MemberIdentity], "3+")


class MemberResponse(Struct):
    member_id: str = row("string", "3+")
    group_instance_id: str | None = row("string", "3+", nullable="3+")
    error_code: int = row("int16", "3+")


class LeaveGroupResponse(Message, key=13, kind="response", versions="0-5", flexible="4+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "0+")
    members: list[MemberResponse] = row([MemberResponse], "3+")


class SyncGroupRequestAssignment(Struct):
    member_id: str = row("string", "0+")
    assignment: bytes = row("bytes", "0+")


class SyncGroupRequest(Message, key=14, kind="request", versions="0-5", flexible="4+", costly=True):
    group_id: str = row("string", "0+")
    generation_id: int = row("int32", "0+")
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)
    protocol_type: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = row([SyncGroupRequestAssignment], "0+")


class SyncGroupResponse(Message, key=14, kind="response", versions="0-5", flexible="4+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "0+")
    protocol_type: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = row("string", "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = row("bytes", "0+")
