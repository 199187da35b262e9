"""The client side of a connection to a broker, without I/O: requests become bytes, bytes become responses.

The caller owns the socket and the clock. With a blocking socket:

    connection = ClientConnection("my-client")

    def exchange(request: EncodedRequest) -> Response:
        sock.sendall(request.frame)
        while (response := connection.next_response()) is None:
            connection.receive(sock.recv(65536))
        return response

    request = connection.start_negotiation()
    while request is not None:
        request = connection.continue_negotiation(exchange(request))
    metadata = exchange(connection.send(MetadataRequest(topics=None))).decode(MetadataResponse)

A response identifies its request only by the correlation id. It does not contain its API and version, without which it
cannot be decoded. Brokers respond to the requests of one connection in order. So the connection keeps a queue of the
requests in flight, and a response that does not belong to the oldest one is an error.

After an error, or when a response takes too long, the connection must be closed: there is no way to skip a response. It
is then unknown whether the broker has processed the requests in flight.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode, MalformedError, error_name
from protocol.framing import (
    MIN_RESPONSE_BYTES,
    FrameReader,
    decode_response_header,
    encode_frame,
    encode_request_header,
    response_version,
)
from protocol.limits import MAX_RESPONSE_BYTES
from protocol.messages import message_classes
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message, message_info
from protocol.schema.primitives import Buffer

M = TypeVar("M", bound=Message)

_MAX_CORRELATION_ID = (1 << 31) - 1


class UnsupportedVersionError(Exception):
    """Broker and client support no common version of an API."""


class NegotiationError(Exception):
    """The broker responded to ApiVersions with an error."""

    def __init__(self, error_code: int) -> None:
        super().__init__(f"ApiVersions failed: {error_name(error_code)}")
        self.error_code = error_code


class UnexpectedResponseError(MalformedError):
    """A response that does not belong to the oldest request in flight."""


class RequestInFlight(NamedTuple):
    """A request that has no response yet."""

    correlation_id: int
    api_key: ApiKey
    version: int


class EncodedRequest(NamedTuple):
    """A request that is ready to be sent."""

    correlation_id: int
    frame: bytes


class Response(NamedTuple):
    """A response. `version` is the version of the body, which begins at `body_pos` of the frame."""

    correlation_id: int
    api_key: ApiKey
    version: int
    frame: bytes
    body_pos: int

    def decode(self, cls: type[M]) -> M:
        """Decode the body. Raises MalformedError."""
        return decode(cls, self.frame, self.version, self.body_pos)


class ClientConnection:
    """The requests and responses of one connection. Create a new one for each socket."""

    def __init__(
        self,
        client_id: str | None,
        *,
        max_versions: Mapping[int, int] | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        software_name: str = "kbroker",
        software_version: str = "unknown",
    ) -> None:
        """`max_versions`: the highest version to use for some API keys; by default the highest that is implemented.

        The name and version of the software are sent in ApiVersions requests (KIP-511).
        """
        self.in_flight: deque[RequestInFlight] = deque()
        # The broker's (min version, max version) by API key, and its finalized features: empty until negotiation ends.
        self.broker_versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        self._client_id = client_id
        self._max_versions = max_versions or {}
        self._software = software_name, software_version
        self._frames = FrameReader(MIN_RESPONSE_BYTES, max_response_bytes)
        self._last_correlation_id = 0
        self._failure: MalformedError | None = None

    # Requests.

    def send(self, request: Message, version: int | None = None, *, expect_response: bool = True) -> EncodedRequest:
        """Encode a request, by default in the highest common version.

        expect_response: False for the one request without a response, Produce with acks=0.

        Raises UnsupportedVersionError if there is no common version, and ValueError if the version cannot carry a
        value of the request.
        """
        info = message_info(type(request))
        if info.kind != "request" or info.key is None:
            raise TypeError(f"{type(request).__name__} is not a request")
        if version is None:
            version = self.version(info.key)
        return self.send_body(info.key, version, encode(request, version), expect_response=expect_response)

    def send_body(self, api_key: int, version: int, body: bytes, *, expect_response: bool = True) -> EncodedRequest:
        """Like `send`, for a request whose body is already encoded."""
        self._last_correlation_id = 0 if (last := self._last_correlation_id) == _MAX_CORRELATION_ID else last + 1
        correlation_id = self._last_correlation_id
        header = encode_request_header(api_key, version, correlation_id, self._client_id)
        if expect_response:
            self.in_flight.append(RequestInFlight(correlation_id, ApiKey(api_key), version))
        return EncodedRequest(correlation_id, encode_frame(header, body))

    # Responses.

    def receive(self, data: Buffer) -> None:
        """Add bytes that have arrived from the broker."""
        self._frames.receive(data)

    def next_response(self) -> Response | None:
        """Remove and return the next response; None if it has not arrived completely.

        Raises MalformedError for bytes that are not a response, UnexpectedResponseError for a response that does not
        belong to the oldest request in flight. After an error every call raises it again.
        """
        if self._failure is None:
            try:
                return self._next_response()
            except MalformedError as error:
                self._failure = error
        raise self._failure

    def _next_response(self) -> Response | None:
        frame = self._frames.next_frame()
        if frame is None:
            return None
        if not self.in_flight:
            raise UnexpectedResponseError("response without a request in flight")
        correlation_id, api_key, version = self.in_flight[0]
        received_id, body_pos = decode_response_header(frame, api_key, version)
        if received_id != correlation_id:
            raise UnexpectedResponseError(
                f"response with correlation id {received_id}, expected {correlation_id} ({api_key.name})"
            )
        self.in_flight.popleft()
        return Response(correlation_id, api_key, response_version(frame, body_pos, api_key, version), frame, body_pos)

    # Versions.

    def start_negotiation(self) -> EncodedRequest:
        """Return an ApiVersions request to send before any other request."""
        return self._api_versions_request(self._max_version(ApiKey.API_VERSIONS))

    def continue_negotiation(self, response: Response) -> EncodedRequest | None:
        """Process an ApiVersions response. Returns another request to send, or None when the versions are known.

        Raises MalformedError; NegotiationError if the broker returns an error other than UNSUPPORTED_VERSION.
        """
        message = response.decode(ApiVersionsResponse)
        versions = {row.api_key: (row.min_version, row.max_version) for row in message.api_keys}
        if message.error_code == ErrorCode.UNSUPPORTED_VERSION and self._last_api_versions > 0:
            # A broker with KIP-511 lists the versions of ApiVersions that it supports; older brokers list nothing.
            _, broker_max = versions.get(ApiKey.API_VERSIONS, (0, 0))
            return self._api_versions_request(max(0, min(broker_max, self._last_api_versions - 1)))
        if message.error_code:
            raise NegotiationError(message.error_code)
        self.broker_versions = versions
        self.finalized_features = {row.name: row.max_version_level for row in message.finalized_features}
        return None

    def version(self, api_key: int) -> int:
        """Return the highest common version of an API. Raises UnsupportedVersionError if there is none."""
        if api_key not in APIS:
            raise UnsupportedVersionError(f"{ApiKey(api_key).name} is not implemented")
        broker_min, broker_max = self.broker_versions.get(api_key, (0, -1))
        client_max = self._max_version(api_key)
        version = min(broker_max, client_max)
        client_min = message_info(message_classes(api_key)[0]).min_version
        if version < max(broker_min, client_min):
            supported = f"{broker_min} to {broker_max}" if broker_max >= 0 else "no version"
            raise UnsupportedVersionError(
                f"{ApiKey(api_key).name}: the broker supports {supported}, the client {client_min} to {client_max}"
            )
        return version

    def supports(self, api_key: int) -> bool:
        """Return whether broker and client support a common version of an API."""
        try:
            self.version(api_key)
        except UnsupportedVersionError:
            return False
        return True

    def _max_version(self, api_key: int) -> int:
        implemented = APIS[api_key].max_version
        return min(implemented, self._max_versions.get(api_key, implemented))

    def _api_versions_request(self, version: int) -> EncodedRequest:
        self._last_api_versions = version
        name, software_version = self._software
        request = ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
        return self.send(request, version)
