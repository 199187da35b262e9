"""DescribeGroups: state, protocol and members of classic groups.

3: authorized operations (KIP-430). 4: static members. 6: error message; GROUP_ID_NOT_FOUND for a group
that does not exist (KIP-1043), which earlier versions return as a Dead group.

ListGroups: the groups whose coordinator this broker is.

4: filter by state (KIP-518).
5: filter by type (KIP-848).
"""

from protocol.schema.message import Message, Struct, row


class DescribeGroupsRequest(Message, key=15, kind="request", versions="0-6", flexible="5+", costly=True):
    groups: list[str] = row(["string"], "0+")
    include_authorized_operations: bool = row("bool", "3+")


class DescribedGroupMember(Struct):
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "4+", nullable="4+", default=None, ignorable=True)
    client_id: str = row("string", "0+")
    client_host: str = row("string", "0+")
    member_metadata: bytes = row("bytes", "0+")
    member_assignment: bytes = row("bytes", "0+")


class DescribedGroup(Struct):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "6+", nullable="6+", default=None)
    group_id: str = row("string", "0+")
    group_state: str = row("string", "0+")
    protocol_type: str = row("string", "0+")
    protocol_data: str = row("string", "0+")
    members: list[DescribedGroupMember] = row([DescribedGroupMember], "0+")
    authorized_operations: int = row("int32", "3+", default=-(2**31))


class DescribeGroupsResponse(Message, key=15, kind="response", versions="0-6", flexible="5+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    groups: list[DescribedGroup] = row([DescribedGroup], "0+")


class ListGroupsRequest(Message, key=16, kind="request", versions="0-5", flexible="3+", costly=True):
    states_filter: list[str] = row(["string"], "4+")
    types_filter: list[str] = row(["string"], "5+")


class ListedGroup(Struct):
    group_id: str = row("string", "0+")
    protocol_type: str = row("string", "0+")
    group_state: str = row("string", "4+", ignorable=True)
    group_type: str = row("string", "5+", ignorable=True)


class ListGroupsResponse(Message, key=16, kind="response", versions="0-5", flexible="3+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "0+")
    groups: list[ListedGroup] = row([ListedGroup], "0+")
