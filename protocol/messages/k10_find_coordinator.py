"""FindCoordinator: the broker that coordinates a group or a transactional id.

1: key types (0 group, 1 transaction, 2 share partition); error message.
4: several keys in one request (KIP-699).
5: the error TRANSACTION_ABORTABLE (KIP-890).
6: share groups (KIP-932).
"""

from protocol.schema.message import Message, Struct, row


class FindCoordinatorRequest(Message, key=10, kind="request", versions="0-6", flexible="3+", costly=True):
    key: str = row("string", "0-3")
    key_type: int = row("int8", "1+")
    coordinator_keys: list[str] = row(["string"], "4+")


class Coordinator(Struct):
    key: str = row("string", "4+")
    node_id: int = row("int32", "4+")
    host: str = row("string", "4+")
    port: int = row("int32", "4+")
    error_code: int = row("int16", "4+")
    error_message: str | None = row("string", "4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Message, key=10, kind="response", versions="0-6", flexible="3+"):
    throttle_time_ms: int = row("int32", "1+", ignorable=True)
    error_code: int = row("int16", "0-3")
    error_message: str | None = row("string", "1-3", nullable="1-3", ignorable=True)
    node_id: int = row("int32", "0-3")
    host: str = row("string", "0-3")
    port: int = row("int32", "0-3")
    coordinators: list[Coordinator] = row([Coordinator], "4+")
