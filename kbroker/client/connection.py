"""One blocking connection to a broker: several requests in flight, responses in the order of the requests.

Network failures and malformed responses are raised as BrokerUnreachable: whether the broker has processed the request
is then unknown.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TypeVar

from kbroker.client.requests import MAX_VERSIONS, Address, BrokerError
from kbroker.client.retries import SILENT_FOR_S, OnWait, ignore_wait
from kbroker.client.security import NO_SECURITY, begin_tls, log_in
from kbroker.common import ClientSecurity, format_address
from protocol.apis import PRIVATE_APIS
from protocol.client import ClientConnection, EncodedRequest, NegotiationError, Response, UnsupportedVersionError
from protocol.errors import MalformedError
from protocol.schema.message import Message, message_info

M = TypeVar("M", bound=Message)
T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
# A broker responds to the first request at once. A server of another protocol may wait for more bytes.
NEGOTIATION_TIMEOUT_S = 5.0
READ_BYTES = 256 << 10
NO_BROKER = "is this the port of a Kafka broker, and does it use TLS?"


class BrokerUnreachable(ConnectionError):
    """A broker cannot be reached, or does not respond. `address`: HOST:PORT, empty if it is about several brokers."""

    address = ""


class BrokerConnection:
    """A connection to one broker. It is closed after a failure, and `is_open` is false then.

    `on_wait` is called if the broker reads or sends nothing for long.
    """

    def __init__(
        self,
        address: Address,
        *,
        client_id: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        security: ClientSecurity = NO_SECURITY,
        max_versions: Mapping[int, int] = MAX_VERSIONS,
    ) -> None:
        """Connect, negotiate versions and log in. `timeout_s`: for each request without one of its own.

        Raises BrokerUnreachable, BrokerError.
        """
        self.address = address
        self.is_open = True
        self.on_wait: OnWait = ignore_wait
        self._timeout_s = timeout_s
        self._protocol = ClientConnection(client_id, max_versions=max_versions)
        self._socket: socket.socket | None = None
        with self._closed_by_failures():
            self._socket = socket.create_connection(address, min(connect_timeout_s, timeout_s))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = begin_tls(security, self._socket, address[0])
            self._negotiate_versions()
            if security.mechanism:
                log_in(security, self.request)

    def __enter__(self) -> "BrokerConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def supports(self, api_key: int) -> bool:
        """Return whether the broker and this client support a common version of an API."""
        return self._protocol.supports(api_key)

    def version(self, api_key: int) -> int:
        """Return the newest version that both support. Raises UnsupportedVersionError."""
        # Brokers do not advertise kbroker's own APIs. One that does not know them disconnects.
        return 0 if api_key in PRIVATE_APIS else self._protocol.version(api_key)

    def send(self, request: Message, *, expect_response: bool = True) -> None:
        """Send a request; `receive` returns its response. Raises BrokerUnreachable, UnsupportedVersionError.

        expect_response: False for the one request without a response, Produce with acks=0.
        """
        key = message_info(type(request)).key
        assert key is not None
        try:
            encoded = self._protocol.send(request, self.version(key), expect_response=expect_response)
        except ValueError as error:
            # The broker's version has no field for a value.
            raise UnsupportedVersionError(str(error)) from None
        with self._closed_by_failures():
            deadline, unsent = monotonic() + self._timeout_s, memoryview(encoded.frame)
            while unsent:
                unsent = unsent[self._wait_for(partial(self._connected().send, unsent), deadline) :]

    def receive(self, response_type: type[M], timeout_s: float | None = None) -> M:
        """Return the response to the oldest request in flight. Raises BrokerUnreachable."""
        with self._closed_by_failures():
            return self._receive(self._timeout_s if timeout_s is None else timeout_s).decode(response_type)

    def request(self, request: Message, response_type: type[M], timeout_s: float | None = None) -> M:
        """Send a request and return its response. No other request may be in flight. Raises as `send`."""
        self._connected()
        assert not self._protocol.in_flight, "requests are in flight"
        self.send(request)
        return self.receive(response_type, timeout_s)

    def is_usable(self) -> bool:
        """Return whether the connection is open. Closes one that the broker has closed, as it does with idle ones."""
        if self.is_open and self._socket is not None and not self._protocol.in_flight:
            self._socket.settimeout(0)
            try:
                # No bytes are expected: what arrives is the end, or of TLS itself.
                self._socket.recv(1)
                self.close()
            except BlockingIOError:
                pass
            except OSError as error:
                from ssl import SSLWantReadError  # most connections have no TLS

                if not isinstance(error, SSLWantReadError):
                    self.close()
        return self.is_open

    def close(self) -> None:
        self.is_open = False
        if self._socket is not None:
            self._socket.close()

    def _connected(self) -> socket.socket:
        if self._socket is None or not self.is_open:
            raise BrokerUnreachable("the connection is closed")
        return self._socket

    def _receive(self, timeout_s: float) -> Response:
        deadline = monotonic() + timeout_s
        while (response := self._protocol.next_response()) is None:
            data = self._wait_for(partial(self._connected().recv, READ_BYTES), deadline)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._protocol.receive(data)
        return response

    def _wait_for(self, operation: Callable[[], T], deadline: float) -> T:
        """Run an operation of the socket, and report it if it waits for long. Raises TimeoutError."""
        left_s = max(deadline - monotonic(), 0.001)
        self._connected().settimeout(min(left_s, SILENT_FOR_S))
        try:
            return operation()
        except TimeoutError:
            if left_s <= SILENT_FOR_S:
                raise
        self.on_wait(f"no response from {format_address(*self.address)}")
        self._connected().settimeout(left_s - SILENT_FOR_S)
        return operation()

    def _negotiate_versions(self) -> None:
        timeout_s = min(self._timeout_s, NEGOTIATION_TIMEOUT_S)
        try:
            request: EncodedRequest | None = self._protocol.start_negotiation()
            while request is not None:
                self._connected().settimeout(timeout_s)
                self._connected().sendall(request.frame)
                request = self._protocol.continue_negotiation(self._receive(timeout_s))
        except NegotiationError as error:
            raise BrokerError(error.error_code, "ApiVersions") from None
        except TimeoutError:
            raise TimeoutError(f"no response to the first request within {timeout_s:g} s: {NO_BROKER}") from None
        except MalformedError:
            raise ConnectionError(f"the response is not one of the Kafka protocol: {NO_BROKER}") from None
        except ConnectionResetError:
            raise ConnectionResetError(f"the connection was closed at the first request: {NO_BROKER}") from None

    @contextmanager
    def _closed_by_failures(self) -> Iterator[None]:
        """Close the connection if the block fails. Raises BrokerUnreachable."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, MalformedError):
                error = ConnectionError(f"the broker sent a malformed response: {error}")
            if not isinstance(error, OSError):
                raise
            failure = BrokerUnreachable(*error.args)
            failure.address = format_address(*self.address)
            raise failure from None
