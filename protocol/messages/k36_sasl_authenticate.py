"""SaslAuthenticate: a token of the SASL mechanism, and the broker's response to it (KIP-152).

1: the time until the client must authenticate again (KIP-368). 2: flexible.
"""

from protocol.schema.message import Message, row


class SaslAuthenticateRequest(Message, key=36, kind="request", versions="0-2", flexible="2+"):
    auth_bytes: bytes = row("bytes", "0+")


class SaslAuthenticateResponse(Message, key=36, kind="response", versions="0-2", flexible="2+"):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    auth_bytes: bytes = row("bytes", "0+")
    session_lifetime_ms: int = row("int64", "1+", ignorable=True)
