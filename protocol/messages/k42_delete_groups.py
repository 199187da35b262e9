"""DeleteGroups: delete empty groups with their offsets.

3: an error message for each group.
"""

from protocol.schema.message import Message, Struct, row


class DeleteGroupsRequest(Message, key=42, kind="request", versions="0-3", flexible="2+", costly=True):
    groups_names: list[str] = row(["string"], "0+")


class DeletableGroupResult(Struct):
    group_id: str = row("string", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "3+", nullable="3+", default=None, ignorable=True)


class DeleteGroupsResponse(Message, key=42, kind="response", versions="0-3", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    results: list[DeletableGroupResult] = row([DeletableGroupResult], "0+")
