"""The contents of an Envelope (KIP-590): a client's request with its header, and the response with its header."""

from __future__ import annotations

from ipaddress import ip_address

from kbroker.common import Buffer, KafkaError
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import decode_response_header, encode_request_header
from protocol.messages import message_classes
from protocol.messages.k58_envelope import EnvelopeRequest, EnvelopeResponse
from protocol.schema.codec import decoder, encoder
from protocol.schema.message import Message

# DefaultPrincipalData in version 0 with its version before it: User:ANONYMOUS, not authenticated by a token.
ANONYMOUS_PRINCIPAL = b"\0\0" + b"\x05User" + b"\x0aANONYMOUS" + b"\0" + b"\0"


def encode_envelope(
    api_key: int, version: int, client_id: str | None, client_host: str, body: bytes
) -> EnvelopeRequest:
    header = encode_request_header(api_key, version, 0, client_id)
    return EnvelopeRequest(
        request_data=header + body,
        request_principal=ANONYMOUS_PRINCIPAL,
        client_host_address=encode_address(client_host),
    )


def encode_address(host: str) -> bytes:
    """Return the 4 or 16 bytes of an address; none for a name."""
    try:
        return ip_address(host.partition("%")[0]).packed
    except ValueError:
        return b""


def decode_address(data: bytes) -> str:
    """Return the text of an address. Raises ValueError."""
    return str(ip_address(data)) if data else "?"


def encode_in_turns(request: Message, version: int) -> bytes:
    """Encode a request, which may be large."""
    out: list[Buffer] = []
    encoder(type(request), version)(request, out, yield_if_due)
    return b"".join(out)


def response_of_envelope(api_key: int, version: int, envelope: EnvelopeResponse) -> Message:
    """Decode the response in an Envelope. Raises KafkaError."""
    data = envelope.response_data or b""
    try:
        _, pos = decode_response_header(data, api_key, version)
        response: Message
        response, _ = decoder(message_classes(api_key)[1], version)(data, pos, pause=yield_if_due)
        return response
    except MalformedError as error:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The controller's response is malformed: {error}") from error
