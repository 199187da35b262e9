"""SaslHandshake: a client chooses the SASL mechanism of its connection (KIP-43).

0: the tokens of the mechanism follow without Kafka's request headers. 1: they follow in SaslAuthenticate (KIP-152).
"""

from protocol.schema.message import Message, row


class SaslHandshakeRequest(Message, key=17, kind="request", versions="0-1", flexible="none"):
    mechanism: str = row("string", "0+")


class SaslHandshakeResponse(Message, key=17, kind="response", versions="0-1", flexible="none"):
    error_code: int = row("int16", "0+")
    mechanisms: list[str] = row(["string"], "0+")
