"""A line between clients and a broker that knows which requests are unanswered, and can hold answers back.

A broker that dies while it holds no answer back is the easy case. With the answers held on the line, what clients
see as unanswered has been appended already, and every repetition after the restart must be known as one.
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
_API = Struct(">hhi")
_CORRELATION = Struct(">i")
MAX_BATCH = 64 << 20


class Unanswered:
    """Produce requests that the broker's socket took and whose answers no client got."""

    def __init__(self, frames: Sequence[bytes] = ()) -> None:
        self.requests = len(frames)
        self.batches = sum(map(_batches, frames))
        self._frames = frames

    def find(self, pattern: re.Pattern[bytes]) -> set[tuple[bytes, ...]]:
        """The groups of every match in the requests' records."""
        return {match.groups() for frame in self._frames for data in _records(frame) for match in find(pattern, data)}


@dataclass(eq=False)
class _Link:
    """One client's connection: its unanswered requests by correlation id, its answers that are held back."""

    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    open: dict[int, bytes] = field(default_factory=dict)
    held: dict[int, bytes] = field(default_factory=dict)

    def count(self, api: ApiKey, answers: bool) -> int:
        frames = (self.open[known] for known in self.held if known in self.open) if answers else self.open.values()
        return sum(1 for frame in frames if _API.unpack_from(frame)[0] == api)


class Line:
    """Listens on `address`; connections end when the broker's do. Its loop runs in a thread until `close`."""

    def __init__(self) -> None:
        self.address = ""
        self._target = ("", 0)
        self._links: set[_Link] = set()
        self._lost: list[bytes] = []
        self._holding = False
        self._only: ApiKey | None = None
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen())

    def lead_to(self, bootstrap: str) -> None:
        """Connections are made to this broker from now on."""
        host, _, port = bootstrap.rpartition(":")
        self._target = host, int(port)

    def hold(self, only: ApiKey | None = None) -> None:
        """Answers stay on the line from now on; those of a broker that dies are never seen. `only`: a connection goes
        on until the first answer of this API."""
        self._run(self._set_holding(True, only))

    def release(self) -> None:
        """What is held goes on, and so does what comes."""
        self._run(self._set_holding(False))

    def unanswered(self, api: ApiKey = ApiKey.PRODUCE) -> int:
        """Produce requests that the broker's sockets took and that clients wait for."""
        return self._run(self._count(api, answers=False))

    def held(self, api: ApiKey = ApiKey.PRODUCE) -> int:
        """Produce requests among those that the broker has answered."""
        return self._run(self._count(api, answers=True))

    def connections(self) -> int:
        return len(self._links)

    def take_lost(self) -> Unanswered:
        """What was unanswered when the broker's side of the connections broke, since the last call."""
        lost, self._lost = self._lost, []
        return Unanswered(lost)

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    # On the loop.

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def _end(self) -> None:
        self._server.close()
        for link in list(self._links):
            link.client.transport.abort()
            link.broker.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _set_holding(self, holding: bool, only: ApiKey | None = None) -> None:
        self._holding = holding
        self._only = only
        if not holding:
            for link in self._links:
                for known in list(link.held):
                    self._answer(link, known, link.held.pop(known))

    async def _count(self, api: ApiKey, answers: bool) -> int:
        return sum(link.count(api, answers) for link in self._links)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, broker = await asyncio.open_connection(*self._target)
        except OSError:
            client.transport.abort()
            return
        link = _Link(client, broker)
        self._links.add(link)
        pumps = [asyncio.create_task(self._requests(link, reader)), asyncio.create_task(self._answers(link, answers))]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        if pumps[1].done():
            self._lost += [frame for frame in link.open.values() if _API.unpack_from(frame)[0] == ApiKey.PRODUCE]
        self._links.discard(link)
        client.transport.abort()
        broker.transport.abort()
        await asyncio.wait(pumps)
        self._tasks.difference_update(pumps)

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while (frame := await _frame(reader)) is not None:
            link.open[_API.unpack_from(frame)[2]] = frame
            link.broker.write(_SIZE.pack(len(frame)) + frame)

    async def _answers(self, link: _Link, reader: asyncio.StreamReader) -> None:
        while (frame := await _frame(reader)) is not None:
            (known,) = _CORRELATION.unpack_from(frame)
            if self._holding and (link.held or self._only in (None, _API.unpack_from(link.open[known])[0])):
                link.held[known] = frame
            else:
                self._answer(link, known, frame)

    @staticmethod
    def _answer(link: _Link, known: int, frame: bytes) -> None:
        link.open.pop(known, None)
        link.client.write(_SIZE.pack(len(frame)) + frame)


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next whole frame without its size; None when the connection has ended."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None


def _batches(frame: bytes) -> int:
    return len(_records(frame))


def _records(frame: bytes) -> list[bytes]:
    header = decode_request_header(frame)
    request = decode(ProduceRequest, frame, header.version, header.body_pos)
    return [bytes(part.records or b"") for topic in request.topic_data for part in topic.partition_data]


def find(pattern: re.Pattern[bytes], data: bytes) -> Iterator[re.Match[bytes]]:
    """Every match in the records of whole batches, whatever their compression."""
    for position, header in iter_headers(data):
        yield from pattern.finditer(decompress(header.codec, body_of(data, position, header.size), MAX_BATCH))
