"""Heartbeat: a member is alive. The response has REBALANCE_IN_PROGRESS when it must join again.

3: static members (KIP-345).
"""

from protocol.schema.message import Message, row


class HeartbeatRequest(Message, key=12, kind="request", versions="0-4", flexible="4+"):
    group_id: str = row("string", "0+")
    generation_id: int = row("int32", "0+")
    member_id: str = row("string", "0+")
    group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)


class HeartbeatResponse(Message, key=12, kind="response", versions="0-4", flexible="4+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "0+")
