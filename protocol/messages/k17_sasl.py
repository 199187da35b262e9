"""A SASL login (KIP-43, KIP-152): SaslHandshake chooses the mechanism, SaslAuthenticate has its tokens.

SaslHandshake 0: the tokens follow without Kafka's request headers. 1: they follow in SaslAuthenticate. SaslAuthenticate
1: the time until the client must authenticate again (KIP-368).
"""

from protocol.schema.message import Message, row


class SaslHandshakeRequest(Message, key=17, kind="request", versions="0-1", flexible="none"):
    mechanism: str = row("string", "0+")


class SaslHandshakeResponse(Message, key=17, kind="response", versions="0-1", flexible="none"):
    error_code: int = row("int16", "0+")
    mechanisms: list[str] = row(["string"], "0+")


class SaslAuthenticateRequest(Message, key=36, kind="request", versions="0-2", flexible="2+"):
    auth_bytes: bytes = row("bytes", "0+")


class SaslAuthenticateResponse(Message, key=36, kind="response", versions="0-2", flexible="2+"):
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")
    auth_bytes: bytes = row("bytes", "0+")
    session_lifetime_ms: int = row("int64", "1+", ignorable=True)
