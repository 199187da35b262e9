"""Connections in memory. Bytes arrive late, in order, and cut anywhere, as one seed decides.

A transport behaves as asyncio's do: writing never blocks, what the peer has not taken counts against the write
limits, and a connection ends by close (what was written still arrives, then the end of the stream) or by abort
(the peer's connection is reset).
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from kbroker.simulation.transport import Address, SimTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)
ProtocolFactory = Callable[[], asyncio.BaseProtocol]
Hosts = str | Sequence[str] | None

FIRST_EPHEMERAL_PORT = 49152
ANY_HOST = ""
LOOPBACK = "127.0.0.1"


class SimNetwork:
    """The listeners, and how long bytes are on their way: `latency_s` is (least, most), one way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.latency_s = (0.000_05, 0.000_5)
        self._listeners: dict[Address, SimServer] = {}
        self._next_port = FIRST_EPHEMERAL_PORT

    def delay(self, source: str, target: str) -> float:
        """Seconds from one host to another, for bytes that leave now."""
        return self.random.uniform(*self.latency_s)

    def bind(self, factory: ProtocolFactory, host: Hosts, port: int) -> "SimServer":
        """Take an address on each of the hosts, on all if there is none. Raises OSError(EADDRINUSE)."""
        names = [host] if isinstance(host, str) else list(host or [ANY_HOST])
        port = port or self._free_port()
        addresses = [(_normal(name), port) for name in names]
        for address in addresses:
            if address in self._listeners:
                raise OSError(errno.EADDRINUSE, f"address in use: {address[0] or '*'}:{port}")
        server = SimServer(self, factory, addresses)
        self._listeners.update(dict.fromkeys(addresses, server))
        return server

    def unbind(self, server: "SimServer") -> None:
        for address in server.addresses:
            if self._listeners.get(address) is server:
                del self._listeners[address]

    async def connect(
        self, factory: Callable[[], P], target: Address, source: Address | None = None
    ) -> tuple[SimTransport, P]:
        """Open a connection. Raises ConnectionRefusedError if nobody serves there."""
        target = (_normal(target[0]), target[1])
        host = _normal(source[0]) if source else LOOPBACK
        local = (host, (source[1] if source else 0) or self._free_port())
        await self._travel(local[0], target[0])
        server = self._listeners.get(target) or self._listeners.get((ANY_HOST, target[1]))
        if server is None or not server.is_serving():
            await self._travel(target[0], local[0])
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody serves at {target[0]}:{target[1]}")
        near, far = SimTransport(self, local, target), SimTransport(self, target, local)
        near.peer, far.peer = far, near
        self.loop.call_soon(lambda: far.begin(server.factory()))
        await self._travel(target[0], local[0])
        if near.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        protocol = factory()
        near.begin(protocol)
        return near, protocol

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self.delay(source, target))

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1


def _normal(host: str) -> str:
    if host in ("localhost", "::1"):
        return LOOPBACK
    return ANY_HOST if host in ("0.0.0.0", "::") else host


class SimSocket:
    """As much of a listening socket as servers show."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address[0] or "0.0.0.0", self._address[1]

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Options of real sockets mean nothing here."""


class SimServer(asyncio.AbstractServer):
    """A listener. Closing it leaves its connections open, as in asyncio."""

    def __init__(self, network: SimNetwork, factory: ProtocolFactory, addresses: list[Address]) -> None:
        self.factory = factory
        self.addresses = addresses
        self.sockets: tuple[SimSocket, ...] = tuple(SimSocket(address) for address in addresses)
        self._network = network
        self._serving = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = True

    async def serve_forever(self) -> None:
        self._serving = True
        await self._network.loop.create_future()

    def close(self) -> None:
        self._serving = False
        self.sockets = ()
        self._network.unbind(self)

    def close_clients(self) -> None:
        raise OSError(errno.EOPNOTSUPP, "a simulated server does not know its clients")

    def abort_clients(self) -> None:
        self.close_clients()

    async def wait_closed(self) -> None:
        pass

    async def __aexit__(self, *details: Any) -> None:
        self.close()
