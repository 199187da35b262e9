"""ListGroups: the groups whose coordinator this broker is.

4: filter by state (KIP-518).
5: filter by type (KIP-848).
"""

from protocol.schema.message import Message, Struct, row


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
