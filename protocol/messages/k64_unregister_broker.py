"""UnregisterBroker: remove the registration of a broker that has gone for good."""

from protocol.schema.message import Message, row


class UnregisterBrokerRequest(Message, key=64, kind="request", versions="0", flexible="0+"):
    broker_id: int = row("int32", "0+")


class UnregisterBrokerResponse(Message, key=64, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
