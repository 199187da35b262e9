"""BrokerHeartbeat: a broker asks the controller for a controlled shutdown, and reports its offline log directories.

1: offline log directories (KIP-858).
2: cordoned log directories (KIP-1066).
"""

from protocol.schema.message import Message, row


class BrokerHeartbeatRequest(Message, key=63, kind="request", versions="0-2", flexible="0+"):
    broker_id: int = row("int32", "0+")
    broker_epoch: int = row("int64", "0+", default=-1)
    current_metadata_offset: int = row("int64", "0+")
    want_fence: bool = row("bool", "0+")
    want_shut_down: bool = row("bool", "0+")
    offline_log_dirs: list[bytes] = row(["uuid"], "1+", tag=0)
    cordoned_log_dirs: list[bytes] | None = row(["uuid"], "2+", tag=1, nullable="2+", default=None)


class BrokerHeartbeatResponse(Message, key=63, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    is_caught_up: bool = row("bool", "0+")
    is_fenced: bool = row("bool", "0+", default=True)
    should_shut_down: bool = row("bool", "0+")
