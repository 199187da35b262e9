"""One blocking connection to a broker: several requests in flight, responses in the order of the requests.

Network failures are raised as OSError: whether the broker has processed the request is then unknown. An error code in
a response is raised as BrokerError.
"""

import socket
from collections import deque
from struct import Struct
from typing import NamedTuple, TypeVar

from kbroker.pipeline.errors import PipelineError
from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
Address = tuple[str, int]

CLIENT_ID = "kbroker-replay"
CONNECT_TIMEOUT_S = 5.0
# The newest versions whose requests name topics; later ones identify topics by topic id only.
MAX_VERSIONS = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12}
MAX_RESPONSE_BYTES = 128 << 20

_SIZE = Struct(">i")
_UNSUPPORTED = (0, -1)


class BrokerError(Exception):
    """A broker responded with an error code."""

    def __init__(self, code: int, subject: str, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
        except ValueError:
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
        detail = f"{message.rstrip('.')} ({self.code.name})" if message else self.code.name
        super().__init__(f"{subject}: {detail}")


class UnsupportedApiError(PipelineError):
    """The broker and this client have no version of an API in common."""


class _SentRequest(NamedTuple):
    correlation_id: int
    api_key: int
    version: int


class BrokerConnection:
    """A connection to one broker. Requests may be sent before earlier ones have their responses."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Connect and negotiate versions. `timeout_s` limits each read and write. Raises OSError, BrokerError."""
        self._in_flight: deque[_SentRequest] = deque()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._fetch_api_versions()
        except BaseException:
            self._socket.close()
            raise

    def supports(self, api_key: ApiKey) -> bool:
        """Whether broker and client have a version of this API in common."""
        return self._versions.get(api_key, _UNSUPPORTED)[0] <= self.version(api_key)

    def version(self, api_key: ApiKey) -> int:
        """Return the newest version that both support, negative if the broker does not have the API."""
        return min(self._versions.get(api_key, _UNSUPPORTED)[1], MAX_VERSIONS.get(api_key, APIS[api_key].max_version))

    def send(self, request: Message) -> None:
        """Send a request; `receive` returns its response. Raises OSError, UnsupportedApiError."""
        api_key = ApiKey(request.__class__.__options__["key"])
        if not self.supports(api_key):
            raise UnsupportedApiError(f"the broker does not support {APIS[api_key].name}, which a replay needs")
        self._send(request, api_key, self.version(api_key))

    def receive(self, response_type: type[M]) -> M:
        """Return the response to the oldest request in flight. Raises OSError."""
        request = self._in_flight.popleft()
        (size,) = _SIZE.unpack(self._read(4))
        if not 4 <= size <= MAX_RESPONSE_BYTES:
            raise ConnectionError(f"the broker sent a response of {size} bytes")
        body = self._read(size)
        try:
            correlation_id, pos = decode_response_header(body, request.api_key, request.version)
            if correlation_id != request.correlation_id:
                raise ConnectionError("the broker sent responses out of order")
            return decode(response_type, body, request.version, pos)
        except MalformedError as error:
            raise ConnectionError(f"the broker sent a malformed response: {error}") from None

    def request(self, request: Message, response_type: type[M]) -> M:
        """Send a request and return its response. No other may be in flight. Raises OSError, UnsupportedApiError."""
        assert not self._in_flight, "requests are in flight"
        self.send(request)
        return self.receive(response_type)

    def close(self) -> None:
        self._socket.close()

    def _send(self, request: Message, api_key: int, version: int) -> None:
        self._correlation_id += 1
        header = encode_request_header(api_key, version, self._correlation_id, CLIENT_ID)
        self._in_flight.append(_SentRequest(self._correlation_id, api_key, version))
        self._socket.sendall(encode_frame(header, encode(request, version)))

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, received = memoryview(data), 0
        while received < size:
            count = self._socket.recv_into(view[received:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            received += count
        return data

    def _fetch_api_versions(self) -> None:
        # Every broker supports version 0, and the fields of later versions are not needed.
        self._send(ApiVersionsRequest(), ApiKey.API_VERSIONS, 0)
        response = self.receive(ApiVersionsResponse)
        if response.error_code:
            raise BrokerError(response.error_code, "ApiVersions")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
