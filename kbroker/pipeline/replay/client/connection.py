"""One blocking connection to a broker: several requests in flight, responses in the order of the requests.

Network failures and malformed responses are raised as OSError: whether the broker has processed the request is then
unknown. An error code in a response is raised as BrokerError.
"""

import socket
from typing import TypeVar

from kbroker.pipeline.errors import PipelineError
from protocol.apis import ApiKey
from protocol.client import ClientConnection, EncodedRequest, NegotiationError, Response, UnsupportedVersionError
from protocol.errors import ErrorCode, MalformedError
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
Address = tuple[str, int]

CLIENT_ID = "kbroker-replay"
CONNECT_TIMEOUT_S = 5.0
# The newest versions whose requests name topics; later ones identify topics by topic id only.
MAX_VERSIONS: dict[int, int] = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12}
READ_BYTES = 256 << 10


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
    """The broker and this client support no common version of an API."""


class BrokerConnection:
    """A connection to one broker. Requests may be sent before earlier ones have their responses."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        """Connect and negotiate versions. `timeout_s` limits each read and write. Raises OSError, BrokerError."""
        self._client = ClientConnection(CLIENT_ID, max_versions=MAX_VERSIONS)
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._negotiate_versions()
        except BaseException:
            self._socket.close()
            raise

    def supports(self, api_key: ApiKey) -> bool:
        """Return whether the broker and this client support a common version of an API."""
        return self._client.supports(api_key)

    def version(self, api_key: ApiKey) -> int:
        """Return the newest version that both support. Raises UnsupportedApiError."""
        try:
            return self._client.version(api_key)
        except UnsupportedVersionError as error:
            raise UnsupportedApiError(str(error)) from None

    def send(self, request: Message) -> None:
        """Send a request; `receive` returns its response. Raises OSError, UnsupportedApiError."""
        try:
            encoded = self._client.send(request)
        except UnsupportedVersionError as error:
            raise UnsupportedApiError(str(error)) from None
        self._socket.sendall(encoded.frame)

    def receive(self, response_type: type[M]) -> M:
        """Return the response to the oldest request in flight. Raises OSError."""
        try:
            return self._receive().decode(response_type)
        except MalformedError as error:
            raise ConnectionError(f"the broker sent a malformed response: {error}") from None

    def request(self, request: Message, response_type: type[M]) -> M:
        """Send a request and return its response. Raises OSError, UnsupportedApiError.

        No other request may be in flight.
        """
        assert not self._client.in_flight, "requests are in flight"
        self.send(request)
        return self.receive(response_type)

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> Response:
        while (response := self._client.next_response()) is None:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._client.receive(data)
        return response

    def _negotiate_versions(self) -> None:
        try:
            request: EncodedRequest | None = self._client.start_negotiation()
            while request is not None:
                self._socket.sendall(request.frame)
                request = self._client.continue_negotiation(self._receive())
        except NegotiationError as error:
            raise BrokerError(error.error_code, "ApiVersions") from None
        except MalformedError as error:
            raise ConnectionError(f"the broker sent a malformed response: {error}") from None
