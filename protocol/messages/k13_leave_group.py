"""LeaveGroup: end the membership of one member, or of several from version 3 on (KIP-345).

5: reason (KIP-800).
"""

from protocol.schema.message import Message, Struct, row


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
