"""SyncGroup: the leader sends the assignments; every member receives its own.

3: static members (KIP-345).
5: protocol type and name are checked (KIP-559).
"""

from protocol.schema.message import Message, Struct, row


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
