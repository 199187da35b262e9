"""Faults of the simulated network between pairs of hosts, switched on and off while a program runs.

`ANY` matches every host, present or future. All randomness comes from the network's seed.

- Bytes sent over a cut link are retransmitted: they arrive after the link is restored. A TCP stack whose bytes are not
  acknowledged for TCP_TIMEOUT_S (tcp.py) closes the connection at its end and, if the link works, resets the other end.
  This includes a connection whose bytes arrive but whose acknowledgements do not: a one-way cut.
- A connection that is closed or reset while the link is cut is half open: the other end does not know.
- Connecting times out if the link is cut in either direction.
"""

from collections.abc import Callable, Iterable

from kbroker.simulation.network.fabric import Fabric
from kbroker.simulation.network.link import ANY, DelayRange
from kbroker.simulation.network.tcp import TcpEndpoint

__all__ = ["ANY", "NetworkFaults"]

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
