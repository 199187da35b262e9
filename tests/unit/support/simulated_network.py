"""A simulated network with one listener, and a protocol that records its calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kbroker.simulation.network.network import NetworkFaults
from tests.unit.support.simulated_hosts import SimulatedHosts, simulated

BROKER, CLIENT, PORT = "broker", "client", 9092


class Recorder(asyncio.Protocol):
    """Records its calls. `keeps_open`: the connection stays open after the peer's end of stream."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pieces: list[bytes] = []
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self.keeps_open = False

    @property
    def received(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def is_open(self) -> bool:
        return not self.lost.done()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keeps_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


class ListeningBroker(SimulatedHosts):
    """A host that listens, and clients that connect to it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.network = self.loop.network
        self.faults: NetworkFaults = self.network.faults
        self.accepted: list[Recorder] = []
        self.trace: list[tuple[object, ...]] = []
        self.network.trace = lambda *fields: self.trace.append((self.loop.elapsed_ns, *fields))

    async def start(self) -> None:
        await self.listen()

    async def listen(self) -> None:
        def accept() -> Recorder:
            self.accepted.append(Recorder(self.loop))
            return self.accepted[-1]

        host = self.host(BROKER)
        await host.run(host.create_server(accept, BROKER, PORT))

    async def connect(self, name: str = CLIENT) -> Recorder:
        host = self.host(name)
        _, protocol = await host.run(host.create_connection(lambda: Recorder(self.loop), BROKER, PORT))
        return protocol

    async def pair(self) -> tuple[Recorder, Recorder]:
        """Return the client's and the broker's protocol of a new connection."""
        client = await self.connect()
        await self.until(lambda: len(self.accepted) == sum(event[1] == "open" for event in self.trace))
        return client, self.accepted[-1]

    def crash(self, name: str, *, silent: bool) -> None:
        self.host(name).die()
        self.network.crash_host(name, silent)


def simulated_pair(seeds: Sequence[int]) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Like `simulated`, for a coroutine whose further arguments are the client's and the broker's protocol."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Any:
        async def connect(s: ListeningBroker) -> None:
            await test(s, *await s.pair())

        return simulated(ListeningBroker, seeds)(connect)

    return decorate


async def assert_reset(*connections: Recorder) -> None:
    for connection in connections:
        assert isinstance(await connection.lost, ConnectionResetError)
