"""The headers of requests and responses.

Request header 2 and response header 1 are flexible; the client id stays a classic string in both.
The broker uses the functions of framing.py; tests compare them with these rows.
"""

from protocol.schema.message import Message, row


class RequestHeader(Message, kind="header", versions="1-2", flexible="2+"):
    request_api_key: int = row("int16", "0+")
    request_api_version: int = row("int16", "0+")
    correlation_id: int = row("int32", "0+")
    client_id: str | None = row("string", "1+", nullable="1+", flexible=False)


class ResponseHeader(Message, kind="header", versions="0-1", flexible="1+"):
    correlation_id: int = row("int32", "0+")
