"""Envelope: a client's request, header included, that a broker forwards to the controller (KIP-590)."""

from protocol.schema.message import Message, row


class EnvelopeRequest(Message, key=58, kind="request", versions="0", flexible="0+"):
    request_data: bytes = row("bytes", "0+")
    request_principal: bytes | None = row("bytes", "0+", nullable="0+")
    client_host_address: bytes = row("bytes", "0+")


class DefaultPrincipalData(Message, kind="data", versions="0", flexible="0+"):
    """The principal in an EnvelopeRequest, as Kafka's brokers serialize it: its version (int16) precedes it."""

    type: str = row("string", "0+")
    name: str = row("string", "0+")
    token_authenticated: bool = row("bool", "0+")


class EnvelopeResponse(Message, key=58, kind="response", versions="0", flexible="0+"):
    response_data: bytes | None = row("bytes", "0+", nullable="0+", default=None)
    error_code: int = row("int16", "0+")
