"""A blocking connection to a broker, for bytes as they are and for requests in the project's own codecs."""

import socket
from types import TracebackType
from typing import TypeVar

from protocol.client import ClientConnection, Response
from protocol.framing import SIZE_BYTES
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)


class ConnectionClosedError(Exception):
    """The broker closed the connection instead of responding."""


class BrokerConnection:
    """Reads no further than the frame that it returns, so that raw frames and requests can be mixed."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str | None = "test",
        timeout_s: float = 120,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.client = ClientConnection(client_id)
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect((host.strip("[]"), int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, request: Message, version: int, response_class: type[M]) -> M:
        """Send a request and return its response. Raises ConnectionClosedError."""
        self.send(self.client.send(request, version).frame)
        return self.receive_response().decode(response_class)

    def receive_response(self) -> Response:
        """Return the response to the oldest request in flight. Raises ConnectionClosedError."""
        frame = self.receive_frame()
        self.client.receive(len(frame).to_bytes(SIZE_BYTES, "big") + frame)
        response = self.client.next_response()
        assert response is not None
        return response

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes. Raises ConnectionClosedError."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            self.close()
            raise ConnectionClosedError from error

    def receive_frame(self) -> bytes:
        """Return the next frame without its size. Raises ConnectionClosedError."""
        head = self.receive(SIZE_BYTES)
        if not head:
            self.close()
            raise ConnectionClosedError
        size = int.from_bytes(head, "big")
        frame = self.receive(size)
        assert len(head) == SIZE_BYTES, "closed within the size of a frame"
        assert len(frame) == size, f"closed within a frame, after {len(frame)} of {size} bytes"
        return frame

    def receive(self, size: int) -> bytes:
        """Return `size` bytes, or fewer if the broker closes the connection before."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                break
            if not part:
                break
            data += part
        return bytes(data)

    def finish_sending(self) -> None:
        """Close the sending side of the connection."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "BrokerConnection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
