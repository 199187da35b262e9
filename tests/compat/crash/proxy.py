"""A proxy between clients and a broker that knows the outstanding requests and can hold responses back.

A broker that is killed while no response is held back is the easy case. With responses held by the proxy, requests that
the clients see as outstanding have been appended already, and the broker has to detect each retry after its restart.
"""

import asyncio
import re
import threading
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from protocol.apis import ApiKey
from protocol.framing import decode_request_header
from protocol.messages.k00_produce import ProduceRequest
from protocol.records.batch import body_of, iter_headers
from protocol.records.compression import decompress
from protocol.schema.codec import decode
from tests.compat.support import DEADLINE_S

_SIZE = Struct(">i")
_REQUEST_HEADER = Struct(">hhi")  # API key, version, correlation id
_CORRELATION_ID = Struct(">i")
MAX_BATCH_BYTES = 64 << 20


class LostRequests:
    """Produce requests that the broker received and whose responses no client received."""

    def __init__(self, frames: Sequence[bytes] = ()) -> None:
        self.requests = len(frames)
        self.batches = sum(len(_batches(frame)) for frame in frames)
        self._frames = frames

    def find(self, pattern: re.Pattern[bytes]) -> set[tuple[bytes, ...]]:
        """Return the groups of every match in the records of the requests."""
        return {match.groups() for frame in self._frames for data in _batches(frame) for match in find(pattern, data)}


@dataclass(eq=False)
class ProxiedConnection:
    """The connection of one client, with its outstanding requests and held responses by correlation id."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    outstanding: dict[int, bytes] = field(default_factory=dict)
    held: dict[int, bytes] = field(default_factory=dict)

    def count_outstanding(self, api: ApiKey) -> int:
        return sum(_api_of(frame) == api for frame in self.outstanding.values())

    def count_held(self, api: ApiKey) -> int:
        return sum(_api_of(self.outstanding[number]) == api for number in self.held if number in self.outstanding)


class Proxy:
    """Listens on `address`. Connections end when the broker's end. Its event loop runs in a thread until `close`."""

    def __init__(self) -> None:
        self.address = ""
        self._target = ("", 0)
        self._connections: set[ProxiedConnection] = set()
        self._lost: list[bytes] = []
        self._is_holding = False
        self._held_api: ApiKey | None = None
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen())

    def forward_to(self, bootstrap: str) -> None:
        """Connect new connections to this broker."""
        host, _, port = bootstrap.rpartition(":")
        self._target = host, int(port)

    def hold_responses(self, api: ApiKey | None = None) -> None:
        """Hold all responses back. With `api`, each connection forwards responses until the first one of this API."""
        self._run(self._set_holding(True, api))

    def release_responses(self) -> None:
        """Send the held responses, and forward those that follow."""
        self._run(self._set_holding(False))

    def outstanding(self, api: ApiKey = ApiKey.PRODUCE) -> int:
        """Return the number of requests that the broker received and that clients wait for."""

        async def count() -> int:
            return sum(connection.count_outstanding(api) for connection in self._connections)

        return int(self._run(count()))

    def held(self, api: ApiKey = ApiKey.PRODUCE) -> int:
        """Return the number of held responses."""

        async def count() -> int:
            return sum(connection.count_held(api) for connection in self._connections)

        return int(self._run(count()))

    def connections(self) -> int:
        return len(self._connections)

    def take_lost_requests(self) -> LostRequests:
        """Return the Produce requests that were outstanding when broker connections ended, since the last call."""
        lost, self._lost = self._lost, []
        return LostRequests(lost)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    # In the event loop.

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _end(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.client.transport.abort()
            connection.broker.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _set_holding(self, is_holding: bool, api: ApiKey | None = None) -> None:
        self._is_holding = is_holding
        self._held_api = api
        if not is_holding:
            for connection in self._connections:
                for correlation_id in list(connection.held):
                    self._respond(connection, correlation_id, connection.held.pop(correlation_id))

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker = await asyncio.open_connection(*self._target)
        except OSError:
            client.transport.abort()
            return
        connection = ProxiedConnection(client, broker)
        self._connections.add(connection)
        requests = asyncio.create_task(self._forward_requests(connection, reader))
        responses = asyncio.create_task(self._forward_responses(connection, broker_reader))
        tasks = {requests, responses}
        self._tasks.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if responses.done():
            self._lost += [frame for frame in connection.outstanding.values() if _api_of(frame) == ApiKey.PRODUCE]
        self._connections.discard(connection)
        client.transport.abort()
        broker.transport.abort()
        await asyncio.wait(tasks)
        self._tasks.difference_update(tasks)

    async def _forward_requests(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            _, _, correlation_id = _REQUEST_HEADER.unpack_from(frame)
            connection.outstanding[correlation_id] = frame
            connection.broker.write(_SIZE.pack(len(frame)) + frame)

    async def _forward_responses(self, connection: ProxiedConnection, reader: asyncio.StreamReader) -> None:
        while (frame := await read_frame(reader)) is not None:
            (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
            is_held_api = self._held_api in (None, _api_of(connection.outstanding[correlation_id]))
            if self._is_holding and (connection.held or is_held_api):
                connection.held[correlation_id] = frame
            else:
                self._respond(connection, correlation_id, frame)

    @staticmethod
    def _respond(connection: ProxiedConnection, correlation_id: int, frame: bytes) -> None:
        connection.outstanding.pop(correlation_id, None)
        connection.client.write(_SIZE.pack(len(frame)) + frame)


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next frame without its size, or None when the connection has ended."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None


def _api_of(frame: bytes) -> int:
    return int(_REQUEST_HEADER.unpack_from(frame)[0])


def _batches(frame: bytes) -> list[bytes]:
    """Return the batches of a Produce request."""
    header = decode_request_header(frame)
    request = decode(ProduceRequest, frame, header.version, header.body_pos)
    return [bytes(part.records or b"") for topic in request.topic_data for part in topic.partition_data]


def find(pattern: re.Pattern[bytes], data: bytes) -> Iterator[re.Match[bytes]]:
    """Return every match in the records of whole batches, decompressed."""
    for position, header in iter_headers(data):
        yield from pattern.finditer(decompress(header.codec, body_of(data, position, header.size), MAX_BATCH_BYTES))
