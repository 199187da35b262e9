"""A client that is nothing but sockets and frames."""

import socket
from typing import Any

from tests.compat.wire import entities

TIMEOUT_S = 20


class Closed(Exception):
    """The broker has closed the connection instead of answering."""


class Connection:
    """One socket to a broker. Requests may be sent ahead of their answers, which come in order."""

    def __init__(self, bootstrap: str, client_id: str | None = "wire") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host.strip("[]"), int(port)
        self._client_id = client_id
        self._sent = 0
        self._received = 0
        self._socket: socket.socket | None = None

    def send(self, message: Any, answered: bool = True) -> None:
        """Sends one request, as it is encoded by kio. `answered`: whether an answer is to come."""
        self._sent += 1
        self._received += not answered
        self.send_raw(entities.encode_frame(message, self._sent, self._client_id))

    def receive(self, api: str, version: int) -> Any:
        """The next answer, decoded by kio. Raises Closed."""
        correlation_id, answer = entities.decode_frame(entities.entity(api, "response", version), self.receive_raw())
        self._received += 1
        assert correlation_id == self._received, f"answer to request {correlation_id}, expected {self._received}"
        return answer

    def ask(self, api: str, version: int, **values: Any) -> Any:
        """Sends a request and gives its answer, as kio's dataclass. Raises Closed."""
        self.send(entities.request(api, version, values))
        return self.receive(api, version)

    def send_raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            self.close()
            raise Closed from error

    def finish(self) -> None:
        """Sends nothing more; answers may still come."""
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_WR)

    def receive_raw(self) -> bytes:
        """The next frame, without its size. Raises Closed."""
        size = int.from_bytes(self._exactly(4), "big")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        assert self._socket is not None, "nothing was sent"
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                self.close()
                assert not data, f"closed within a frame, after {len(data)} bytes"
                raise Closed
            data += part
        return bytes(data)

    def close(self) -> None:
        """The next request opens a connection anew."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._sent = self._received = 0
