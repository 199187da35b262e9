"""Requests of kbroker's own APIs over the connections of kafka-python, which has no messages for them."""

from typing import Any, NamedTuple, TypeVar

from kbroker.cli.common.client import send_request
from protocol.errors import MalformedError
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message, message_info

M = TypeVar("M", bound=Message)

# Brokers do not advertise these APIs, so there is no version to negotiate.
VERSION = 0


def send_message(client: Any, request: Message, response_type: type[M]) -> M:
    """Send a request to any broker and return the response. A broker that does not know the API disconnects."""
    response: M = send_request(client, BrokerRequest(request, response_type))
    return response


class _ResponseHeader(NamedTuple):
    correlation_id: int


class BrokerRequest:
    """What kafka-python needs of a request, and of the class of its response."""

    API_VERSION = VERSION

    def __init__(self, request: Message, response_type: type[Message]) -> None:
        key = message_info(type(request)).key
        assert key is not None
        self.API_KEY: int = key
        self.header = self
        self.correlation_id = 0
        self._client_id: str | None = None
        self._request = request
        self._response_type = response_type

    def expect_response(self) -> bool:
        return True

    def with_header(self, correlation_id: int, client_id: str | None) -> None:
        self.correlation_id, self._client_id = correlation_id, client_id

    def encode(self, framed: bool, header: bool) -> bytes:
        head = encode_request_header(self.API_KEY, VERSION, self.correlation_id, self._client_id)
        return encode_frame(head, encode(self._request, VERSION))

    def get_response_class(self) -> "BrokerRequest":
        return self

    def parse_header(self, buffer: Any) -> _ResponseHeader:
        self._response: bytes = buffer.read()
        correlation_id, self._body_pos = decode_response_header(self._response, self.API_KEY, VERSION)
        return _ResponseHeader(correlation_id)

    def decode(self, buffer: Any) -> Message:
        try:
            return decode(self._response_type, self._response, VERSION, self._body_pos)
        except MalformedError as error:
            # Which kafka-python expects of a response that it cannot decode.
            raise ValueError(str(error)) from None
