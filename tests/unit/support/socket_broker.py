"""A broker on a real socket, which responds to each request as a test says."""

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from protocol.apis import ALL_APIS, APIS, ApiKey
from protocol.framing import SIZE_BYTES, decode_request_header, encode_frame, encode_response_header
from protocol.messages import message_classes
from protocol.messages.k03_metadata import MetadataResponse, MetadataResponseBroker
from protocol.messages.k18_api_versions import ApiVersion, ApiVersionsResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

# Returns the response to a request, or bytes to send instead; None disconnects.
Handler = Callable[[Any], Message | bytes | None]


class SocketBroker:
    """Responds to ApiVersions and to the APIs in `handlers`, and disconnects at any other request.

    `requests`: those that have arrived, without ApiVersions. `max_versions`: lower ones than those of this project.
    """

    def __init__(self, handlers: Mapping[int, Handler] | None = None, max_versions: Mapping[int, int] = {}) -> None:
        self.handlers: dict[int, Handler] = dict(handlers or {})
        self.requests: list[Any] = []
        self.connections = 0
        # Whether it closes connections after one response.
        self.closes_idle = False
        self._versions = [
            ApiVersion(api_key=key, min_version=api.min_version, max_version=max_versions.get(key, api.max_version))
            for key, api in APIS.items()
        ]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def close(self) -> None:
        """Stop listening. Connections stay open until they have been used once more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.handlers.clear()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as stream:
            while len(size := stream.read(SIZE_BYTES)) == SIZE_BYTES:
                handled = len(self.requests)
                response = self._respond(stream.read(int.from_bytes(size, "big")))
                if response is None:
                    return
                connection.sendall(response)
                if self.closes_idle and len(self.requests) > handled:
                    return

    def _respond(self, frame: bytes) -> bytes | None:
        header = decode_request_header(frame)
        key, version = header.api_key, header.version
        if key == ApiKey.API_VERSIONS:
            response: Message | bytes | None = ApiVersionsResponse(api_keys=self._versions)
        else:
            assert key in ALL_APIS
            request = decode(message_classes(key)[0], frame, version, header.body_pos)
            self.requests.append(request)
            handler = self.handlers.get(key)
            response = None if handler is None else handler(request)
        if response is None or isinstance(response, bytes):
            return response
        return encode_frame(encode_response_header(key, version, header.correlation_id), encode(response, version))


def metadata(*brokers: SocketBroker, **fields: Any) -> Handler:
    """Return a handler of Metadata: the brokers have the ids 1, 2, ..."""
    rows = [
        MetadataResponseBroker(node_id=number, host="127.0.0.1", port=broker.port)
        for number, broker in enumerate(brokers, 1)
    ]
    return lambda request: MetadataResponse(brokers=rows, cluster_id="abc", **fields)
