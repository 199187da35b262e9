"""Connections in memory. Bytes arrive late, in order, and cut anywhere, as one seed decides.

A transport behaves as asyncio's do: writing never blocks, what the peer has not taken counts against the write
limits, and a connection ends by close (what was written still arrives, then the end of the stream) or by abort
(the peer's connection is reset).

Each end of a connection lives on a loop of its own: all that its protocol hears is scheduled there, so a host that is
paused hears it later and one that has died never does. The stacks themselves run on the network's loop.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from kbroker.simulation.network.faults import NetworkFaults
from kbroker.simulation.network.link import Link, Range
from kbroker.simulation.network.stack import Address, StackEnd, timed_out
from kbroker.simulation.network.transport import SimTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)
ProtocolFactory = Callable[[], asyncio.BaseProtocol]
Hosts = str | Sequence[str] | None
# What happened ("bytes", "open", "close", "reset"), from where, to where, how many bytes, their CRC-32.
Trace = Callable[[str, str, str, int, int], None]

FIRST_EPHEMERAL_PORT = 49152
ANY_HOST = ""
LOOPBACK = "127.0.0.1"
# How long a stack tries to open a connection to a host that does not answer, and how often, in seconds.
CONNECT_TIMEOUT_S = (1.0, 3.0)
CONNECT_AGAIN_S = 0.25


class SimNetwork:
    """Listeners and connections. `latency_s`: (least, most) of bytes on their way, in seconds; `faults` may say
    otherwise."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.trace: Trace | None = None
        self.faults = NetworkFaults(self)
        self._latency_s: Range = (0.000_05, 0.000_5)
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimServer] = {}
        # The living ends of connections by host, and the hosts without power, each with those who may not know.
        self._ends: dict[str, dict[StackEnd, None]] = {}
        self._dark: dict[str, dict[StackEnd, None]] = {}
        self._next_port = FIRST_EPHEMERAL_PORT

    @property
    def latency_s(self) -> Range:
        return self._latency_s

    @latency_s.setter
    def latency_s(self, latency_s: Range) -> None:
        self._latency_s = latency_s
        for link in self._links.values():
            self.faults.equip(link)

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target, self.loop, self.random, self._latency_s)
            self.faults.equip(link)
        return link

    def links(self) -> Iterable[Link]:
        return self._links.values()

    def ends(self) -> Iterator[StackEnd]:
        """Both ends of each connection, by host."""
        return (end for ends in self._ends.values() for end in ends)

    def bind(
        self, factory: ProtocolFactory, host: Hosts, port: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> "SimServer":
        """Take an address on each of the hosts, on all if there is none. Protocols that it makes live on `loop` (the
        network's by default), which may say by its `host` whose it is. Raises OSError(EADDRINUSE)."""
        loop = loop or self.loop
        own = _host_of(loop)
        names = [host] if isinstance(host, str) else list(host or [ANY_HOST])
        port = port or self._free_port()
        addresses = [(_normal(name, own), port) for name in names]
        for address in addresses:
            if address in self._listeners:
                raise OSError(errno.EADDRINUSE, f"address in use: {address[0] or '*'}:{port}")
        server = SimServer(self, factory, addresses, loop)
        for address in addresses:
            self.raise_host(address[0])
            self._listeners[address] = server
        return server

    def unbind(self, server: "SimServer") -> None:
        for address in server.addresses:
            if self._listeners.get(address) is server:
                del self._listeners[address]

    async def connect(
        self,
        factory: Callable[[], P],
        target: Address,
        source: Address | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> tuple[SimTransport, P]:
        """Open a connection from `source` (by default the host of `loop`), whose protocol lives on `loop`. Raises
        ConnectionRefusedError if nobody serves there, TimeoutError if that host cannot be reached."""
        loop = loop or self.loop
        own = _host_of(loop)
        target = (_normal(target[0], own), target[1])
        host = _normal(source[0], own) if source else own
        local = (host, (source[1] if source else 0) or self._free_port())
        self.raise_host(host)
        await self._reach(local[0], target[0])
        server = self._listeners.get(target) or self._listeners.get((ANY_HOST, target[1]))
        if server is None or not server.is_serving():
            await self._travel(target[0], local[0])
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody serves at {target[0]}:{target[1]}")
        near, far = SimTransport(self, loop, local, target), SimTransport(self, server.loop, target, local)
        near.peer, far.peer = far, near
        self._ends.setdefault(local[0], {})[near] = None
        self._ends.setdefault(target[0], {})[far] = None
        self.tell("open", near)
        server.loop.call_soon(_accept, server, far)
        await self._travel(target[0], local[0])
        if near.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        protocol = factory()
        near.begin(protocol)
        return near, protocol

    async def _reach(self, source: str, target: str) -> None:
        """Travel there, trying again for some time while no answer could come."""
        there, back = self.link(source, target), self.link(target, source)
        patience: float | None = None
        while target in self._dark or there.cut or back.cut or there.clogged:
            if patience is None:
                patience = self.random.uniform(*CONNECT_TIMEOUT_S)
            if patience <= 0:
                raise timed_out()
            await asyncio.sleep(min(patience, CONNECT_AGAIN_S))
            patience -= CONNECT_AGAIN_S
        await self._travel(source, target)

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self.link(source, target).delay())

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    # Hosts.

    def drop_host(self, name: str, silent: bool) -> None:
        """The host's process has died: no protocol of it hears anything any more, and its listeners are gone.

        Its stack ends the connections: what it holds of what was written may still arrive and is followed by the end
        of the stream, or they are reset. With `silent` (power is lost) it does nothing: peers do not notice while
        they only listen; what they send is given up after STACK_TIMEOUT_S (stack.py), or answered with a reset
        when the host is up again. Until then connecting to it times out.
        """
        for address, server in list(self._listeners.items()):
            if address[0] == name or _host_of(server.loop) == name:
                server.close()
        if silent:
            self._dark.setdefault(name, {})
        for end in list(self._ends.pop(name, ())):
            if silent:
                self._dark[name][end.peer] = None
            end.vanish(silent)

    def raise_host(self, name: str) -> None:
        """The host has power again; binding and connecting say so by themselves."""
        if name in self._dark:
            for end in self._dark.pop(name):
                end.peer_is_back()

    def forget(self, end: StackEnd) -> None:
        """Both ends of its connection are lost."""
        for each in (end, end.peer):
            if each.host in self._ends:
                self._ends[each.host].pop(each, None)

    def tell(self, what: str, end: StackEnd) -> None:
        if self.trace is not None:
            self.trace(what, end.name, end.peer.name, 0, 0)


def _accept(server: "SimServer", end: SimTransport) -> None:
    """A connection has come to the server's turn; it may have died on the way."""
    if end.gone or end.is_closing():
        return
    if server.is_serving():
        end.begin(server.factory())
    else:
        end.abort()


def _host_of(loop: asyncio.AbstractEventLoop) -> str:
    host: str = getattr(loop, "host", LOOPBACK)
    return host


def _normal(host: str, own: str) -> str:
    if host in ("localhost", "::1", LOOPBACK):
        return own
    if host in (ANY_HOST, "0.0.0.0", "::"):
        return ANY_HOST if own == LOOPBACK else own
    return host


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

    def __init__(
        self, network: SimNetwork, factory: ProtocolFactory, addresses: list[Address], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.factory = factory
        self.addresses = addresses
        self.loop = loop
        self.sockets: tuple[SimSocket, ...] = tuple(SimSocket(address) for address in addresses)
        self._network = network
        self._serving = False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = True

    async def serve_forever(self) -> None:
        self._serving = True
        await self.loop.create_future()

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
