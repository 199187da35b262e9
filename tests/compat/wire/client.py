"""A client whose messages are encoded and decoded by kio."""

from typing import Any

from tests.compat.broker_connection import BrokerConnection, ConnectionClosedError
from tests.compat.wire import kio_messages

TIMEOUT_S = 120


class Client:
    """Sends requests, also several before their responses, over a connection that it opens at the first one.

    After the broker has closed the connection, the next request opens another.
    """

    def __init__(self, bootstrap: str, client_id: str | None = "wire") -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._connection: BrokerConnection | None = None

    def send(self, message: Any, *, expect_response: bool = True) -> None:
        """Send a request of kio. Raises ConnectionClosedError."""
        encoded = self._connected().client.send_body(
            message.__api_key__, message.__version__, kio_messages.encode(message), expect_response=expect_response
        )
        self.send_raw(encoded.frame)

    def receive(self, api: str, version: int) -> Any:
        """Return the next response as kio's dataclass. Raises ConnectionClosedError."""
        assert self._connection is not None, "nothing was sent"
        try:
            response = self._connection.receive_response()
        except ConnectionClosedError:
            self.close()
            raise
        return kio_messages.decode(kio_messages.entity(api, "response", version), response.frame, response.body_pos)

    def request(self, api: str, version: int, **values: Any) -> Any:
        """Send a request and return its response as kio's dataclass. Raises ConnectionClosedError."""
        self.send(kio_messages.request(api, version, values))
        return self.receive(api, version)

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are. Raises ConnectionClosedError."""
        try:
            self._connected().send(data)
        except ConnectionClosedError:
            self.close()
            raise

    def receive_raw(self) -> bytes:
        """Return the next frame without its size. Raises ConnectionClosedError."""
        assert self._connection is not None, "nothing was sent"
        try:
            return self._connection.receive_frame()
        except ConnectionClosedError:
            self.close()
            raise

    def finish_sending(self) -> None:
        """Close the sending side of the connection."""
        assert self._connection is not None, "nothing was sent"
        self._connection.finish_sending()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connected(self) -> BrokerConnection:
        if self._connection is None:
            self._connection = BrokerConnection(self._bootstrap, self._client_id, TIMEOUT_S)
        return self._connection
