"""A simulated network: listeners and connections in memory.

Bytes arrive after a delay, in order, and in segments of any size; the seed decides both. A transport behaves as
asyncio's do: writing never blocks, bytes that the peer has not received count against the write limits, and a
connection ends by close (written bytes still arrive, then the end of the stream) or by abort (the peer's connection
is reset).

Each end of a connection belongs to the loop of one host, where all calls of its protocol are scheduled: the protocol
of a paused host is called later, that of a dead host never. The TCP stacks run on the network's loop.

Faults between pairs of hosts are switched on and off while a program runs. `ANY` matches every host, present or future.
- Bytes sent over a cut link are retransmitted: they arrive after the link is restored. A TCP stack whose bytes are not
  acknowledged for TCP_TIMEOUT_S (tcp.py) closes the connection at its end and, if the link works, resets the other end.
  This includes a connection whose bytes arrive but whose acknowledgements do not: a one-way cut.
- A connection that is closed or reset while the link is cut is half open: the other end does not know.
- Connecting times out if the link is cut in either direction.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TypeVar

from kbroker.simulation.network.link import ANY, DelayRange, Fabric
from kbroker.simulation.network.tcp import Address, TcpEndpoint, timed_out
from kbroker.simulation.network.transport import LOOPBACK, ProtocolFactory, SimServer, SimTransport, host_of

# `reset_any` resets a connection within this many further bytes.
RESET_WITHIN_BYTES = 2000


class NetworkFaults:
    """Injects faults. `injected` counts them by name. `endpoints` returns both ends of each connection, by host."""

    def __init__(self, fabric: Fabric, endpoints: Callable[[], Iterable[TcpEndpoint]]) -> None:
        self.injected = fabric.injected
        self._fabric = fabric
        self._rules = fabric.rules
        self._endpoints = endpoints

    # Links, one way.

    def latency(self, source: str, target: str, latency_s: DelayRange) -> None:
        self.injected["latency"] += 1
        self._rules.latencies[source, target] = latency_s
        self._fabric.apply_rules()

    def slow(self, source: str, target: str, bytes_per_s: float) -> None:
        """Limit the bandwidth, which all connections over the link share."""
        self.injected["slow"] += 1
        self._rules.rates[source, target] = bytes_per_s
        self._fabric.apply_rules()

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Delay all bytes for this time; then they arrive in order."""
        self.injected["clog"] += 1
        loop, clogs = self._fabric.loop, self._rules.clogs
        until = loop.time() + seconds
        clogs[source, target] = max(until, clogs.get((source, target), 0.0))
        loop.call_later(seconds, self._unclog, source, target, until)
        self._fabric.apply_rules()

    def _unclog(self, source: str, target: str, until: float) -> None:
        if self._rules.clogs.get((source, target)) == until:
            del self._rules.clogs[source, target]
            self._fabric.apply_rules()

    def cut(self, source: str, target: str) -> None:
        """Start a one-way partition."""
        self.injected["cut"] += 1
        self._rules.cuts[source, target] = True
        self._fabric.apply_rules()

    def restore(self, source: str, target: str) -> None:
        """Remove the latency, slow, clog and cut rules of this pair."""
        self._rules.remove((source, target))
        self._fabric.apply_rules()

    # Links, both ways.

    def partition(self, host: str, other: str) -> None:
        self.cut(host, other)
        self.cut(other, host)

    def heal(self, host: str, other: str) -> None:
        self.restore(host, other)
        self.restore(other, host)

    def heal_all(self) -> None:
        """Remove all rules and stop random resets. Half-open connections stay half open."""
        self._fabric.reset_chance = 0.0
        self._rules.clear()
        self._fabric.apply_rules()

    # Connections.

    def connections(self, host: str = ANY, peer: str = ANY) -> list[TcpEndpoint]:
        """Return the endpoints at `host` of its open connections with `peer`, oldest first."""
        return [
            endpoint
            for endpoint in self._endpoints()
            if _matches(endpoint.host, host) and _matches(endpoint.peer.host, peer) and endpoint.is_open
        ]

    def reset(self, endpoint: TcpEndpoint, after: int = 0) -> None:
        """Reset the connection at both ends once `after` more bytes written at this endpoint have arrived."""
        endpoint.inject_reset(after)

    def reset_any(self, host: str = ANY, peer: str = ANY) -> bool:
        """Reset a random connection between these hosts at a random byte; return False if there is none."""
        endpoints = self.connections(host, peer)
        if not endpoints:
            return False
        random = self._fabric.random
        endpoint = random.choice(endpoints)
        self.reset(random.choice((endpoint, endpoint.peer)), random.choice((0, random.randint(1, RESET_WITHIN_BYTES))))
        return True

    def blackhole(self, host: str = ANY, peer: str = ANY) -> int:
        """Drop everything that is sent on these connections from now on, as a middlebox that lost its state does.

        Neither end is notified. Returns the number of connections.
        """
        endpoints = self.connections(host, peer)
        for endpoint in endpoints:
            endpoint.blackhole()
            endpoint.peer.blackhole()
        self.injected["forget"] += len(endpoints)
        return len(endpoints)


def _matches(host: str, pattern: str) -> bool:
    return pattern in (ANY, host)


P = TypeVar("P", bound=asyncio.BaseProtocol)
Hosts = str | Sequence[str] | None

FIRST_EPHEMERAL_PORT = 49152
ANY_HOST = ""
# How long connecting to an unreachable host takes to time out, and the interval of its retries, in seconds.
CONNECT_TIMEOUT_S = (1.0, 3.0)
CONNECT_RETRY_S = 0.25


class SimNetwork(Fabric):
    """Binds listeners, opens connections, and ends both when a host dies."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        super().__init__(loop, random)
        self.faults = NetworkFaults(self, self._all_endpoints)
        self._listeners: dict[Address, SimServer] = {}
        # Open endpoints by host.
        self._endpoints: dict[str, dict[TcpEndpoint, None]] = {}
        # Hosts without power, each with the peers of its former connections.
        self._powered_off: dict[str, dict[TcpEndpoint, None]] = {}
        self._next_port = FIRST_EPHEMERAL_PORT

    def _all_endpoints(self) -> Iterator[TcpEndpoint]:
        return (endpoint for endpoints in self._endpoints.values() for endpoint in endpoints)

    def bind(self, factory: ProtocolFactory, host: Hosts, port: int, loop: asyncio.AbstractEventLoop) -> SimServer:
        """Listen on each of the hosts, or on all if `host` is None. Raises OSError(EADDRINUSE).

        The protocols that `factory` returns belong to `loop`, whose `host` attribute names its host.
        """
        own = host_of(loop)
        names = [host] if isinstance(host, str) else list(host or [ANY_HOST])
        port = port or self._free_port()
        addresses = [(_resolve(name, own), port) for name in names]
        for address in addresses:
            if address in self._listeners:
                raise OSError(errno.EADDRINUSE, f"address in use: {address[0] or '*'}:{port}")
        server = SimServer(factory, addresses, loop, self._unbind)
        for address in addresses:
            self._power_on(address[0])
            self._listeners[address] = server
        return server

    def _unbind(self, server: SimServer) -> None:
        for address in server.addresses:
            if self._listeners.get(address) is server:
                del self._listeners[address]

    async def connect(
        self,
        factory: Callable[[], P],
        target: Address,
        source: Address | None,
        loop: asyncio.AbstractEventLoop,
    ) -> tuple[SimTransport, P]:
        """Open a connection from `source`, by default the host of `loop`; its protocol belongs to `loop`.

        Raises ConnectionRefusedError if nothing listens at `target`, TimeoutError if its host is unreachable.
        """
        own = host_of(loop)
        target = (_resolve(target[0], own), target[1])
        host = _resolve(source[0], own) if source else own
        local = (host, (source[1] if source else 0) or self._free_port())
        self._power_on(host)
        await self._reach(local[0], target[0])
        server = self._listeners.get(target) or self._listeners.get((ANY_HOST, target[1]))
        if server is None or not server.is_serving():
            await self._travel(target[0], local[0])
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens at {target[0]}:{target[1]}")
        near = SimTransport(self, loop, local, target, self._remove)
        far = SimTransport(self, server.loop, target, local, self._remove)
        near.peer, far.peer = far, near
        self._endpoints.setdefault(local[0], {})[near] = None
        self._endpoints.setdefault(target[0], {})[far] = None
        if self.trace is not None:
            self.trace("open", near.name, far.name, 0, 0)
        server.loop.call_soon(_accept, server, far)
        await self._travel(target[0], local[0])
        if near.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        protocol = factory()
        near.begin(protocol)
        return near, protocol

    async def _reach(self, source: str, target: str) -> None:
        """Send the first packet to the target, retrying until the connection attempt times out."""
        link, return_link = self.link(source, target), self.link(target, source)
        remaining_s: float | None = None
        while target in self._powered_off or link.cut or return_link.cut or link.clogged:
            if remaining_s is None:
                remaining_s = self.random.uniform(*CONNECT_TIMEOUT_S)
            if remaining_s <= 0:
                raise timed_out()
            await asyncio.sleep(min(remaining_s, CONNECT_RETRY_S))
            remaining_s -= CONNECT_RETRY_S
        await self._travel(source, target)

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self.link(source, target).delay_s())

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    def _remove(self, endpoint: TcpEndpoint) -> None:
        """Forget a connection that is lost at both ends."""
        for each in (endpoint, endpoint.peer):
            if each.host in self._endpoints:
                self._endpoints[each.host].pop(each, None)

    # Hosts.

    def crash_host(self, name: str, silent: bool) -> None:
        """End the listeners and connections of a host whose process has died.

        The host's TCP stack closes each connection: the bytes in its socket buffer may still arrive, followed by the
        end of the stream, or the connection is reset. With `silent` (power is lost) the stack sends nothing: a peer
        that only reads does not notice; the connection of one that writes times out after TCP_TIMEOUT_S (tcp.py), or
        is reset once the host is up again. Until then connecting to the host times out.
        """
        for address, server in list(self._listeners.items()):
            if address[0] == name or host_of(server.loop) == name:
                server.close()
        if silent:
            self._powered_off.setdefault(name, {})
        for endpoint in list(self._endpoints.pop(name, ())):
            if silent:
                self._powered_off[name][endpoint.peer] = None
            endpoint.process_died(silent)

    def _power_on(self, name: str) -> None:
        """Called when a host binds or connects: it has power again."""
        if name in self._powered_off:
            for endpoint in self._powered_off.pop(name):
                endpoint.peer_rebooted()


def _accept(server: SimServer, endpoint: SimTransport) -> None:
    """Accept a connection on the server's loop, unless it has died since it was opened."""
    if endpoint.process_dead or endpoint.is_closing():
        return
    if server.is_serving():
        endpoint.begin(server.factory())
    else:
        endpoint.abort()


def _resolve(host: str, own: str) -> str:
    if host in ("localhost", "::1", LOOPBACK):
        return own
    if host in (ANY_HOST, "0.0.0.0", "::"):
        return ANY_HOST if own == LOOPBACK else own
    return host
