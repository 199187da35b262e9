"""What goes wrong on the simulated network, by pairs of hosts, switched while a program runs.

`ANY` stands for every host that is or will be; where several rules fit, the one that names more hosts holds, and a
host's connections to itself only follow rules that name it twice. All chance comes from the network's seed.

- Packets over a link that is cut are lost and sent again: what was written arrives after it is mended. A stack that
  gets no answer to its bytes for STACK_TIMEOUT_S (stack.py) gives the connection up, on its side and, if there is
  a way, on the other. That also happens to one whose bytes arrive but whose acknowledgements do not: a one-way cut.
- A connection that was closed or reset while the link was cut is half open: the other side does not know.
- Connecting over a cut link, in whichever direction, times out.
"""

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from kbroker.simulation.network.link import Link, Range

if TYPE_CHECKING:
    from kbroker.simulation.network.network import SimNetwork
    from kbroker.simulation.network.stack import StackEnd

T = TypeVar("T")
Pair = tuple[str, str]

ANY = "*"
# Within how many bytes a connection that is to be reset at any place is.
RESET_WITHIN = 2000


class NetworkFaults:
    """`injected` counts what was done. `reset_chance`: of each piece that arrives, to be cut somewhere and followed by
    a reset."""

    def __init__(self, network: "SimNetwork") -> None:
        self.injected: Counter[str] = Counter()
        self.reset_chance = 0.0
        self._network = network
        self._latencies: dict[Pair, Range] = {}
        self._rates: dict[Pair, float] = {}
        self._clogs: dict[Pair, float] = {}
        self._cuts: dict[Pair, bool] = {}

    # Links, one way.

    def latency(self, source: str, target: str, latency_s: Range) -> None:
        self.injected["latency"] += 1
        self._latencies[source, target] = latency_s
        self._apply()

    def slow(self, source: str, target: str, bytes_per_s: float) -> None:
        """All connections over the link share it."""
        self.injected["slow"] += 1
        self._rates[source, target] = bytes_per_s
        self._apply()

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Nothing arrives for so long, then everything, in order."""
        self.injected["clog"] += 1
        until = self._network.loop.time() + seconds
        self._clogs[source, target] = max(until, self._clogs.get((source, target), 0.0))
        self._network.loop.call_later(seconds, self._unclog, source, target, until)
        self._apply()

    def _unclog(self, source: str, target: str, until: float) -> None:
        if self._clogs.get((source, target)) == until:
            del self._clogs[source, target]
            self._apply()

    def cut(self, source: str, target: str) -> None:
        """A one-way partition."""
        self.injected["cut"] += 1
        self._cuts[source, target] = True
        self._apply()

    def mend(self, source: str, target: str) -> None:
        """Ends what latency, slow, clog and cut have begun for this pair."""
        for rules in (self._latencies, self._rates, self._clogs, self._cuts):
            rules.pop((source, target), None)
        self._apply()

    # Both ways.

    def partition(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self, one: str, other: str) -> None:
        self.mend(one, other)
        self.mend(other, one)

    def heal_all(self) -> None:
        """The network is as it was in the beginning. Connections that are half open stay so."""
        self.reset_chance = 0.0
        for rules in (self._latencies, self._rates, self._clogs, self._cuts):
            rules.clear()
        self._apply()

    def equip(self, link: Link) -> None:
        """Make the link as the rules say."""
        link.latency_s = _rule(self._latencies, link) or self._network.latency_s
        link.rate = _rule(self._rates, link)
        link.clogged = _rule(self._clogs, link) is not None
        link.cut = _rule(self._cuts, link) is not None
        if link.waiting:
            link.go_on()

    def _apply(self) -> None:
        for link in self._network.links():
            self.equip(link)

    # Connections.

    def connections(self, one: str = ANY, other: str = ANY) -> "list[StackEnd]":
        """The ends at the first host of the open connections with the other, the oldest first."""
        return [end for end in self._network.ends() if _is(end.host, one) and _is(end.peer.host, other) and end.is_open]

    def reset(self, end: "StackEnd", after: int = 0) -> None:
        """Reset the connection, at both ends, when so many more bytes of what is written here have arrived."""
        self.injected["reset"] += 1
        end.reset_after(after)

    def reset_any(self, one: str = ANY, other: str = ANY) -> bool:
        """Reset one of these connections, at any place of one of its streams; false if there is none."""
        ends = self.connections(one, other)
        if not ends:
            return False
        random = self._network.random
        end = random.choice(ends)
        self.reset(random.choice((end, end.peer)), random.choice((0, random.randint(1, RESET_WITHIN))))
        return True

    def forget(self, one: str = ANY, other: str = ANY) -> int:
        """Something between the hosts has forgotten their connections: nothing that is sent on these arrives any more,
        and nobody is told. Gives how many."""
        ends = self.connections(one, other)
        for end in ends:
            end.forgotten()
            end.peer.forgotten()
        self.injected["forget"] += len(ends)
        return len(ends)


def _is(host: str, wanted: str) -> bool:
    return wanted in (ANY, host)


def _rule(rules: dict[Pair, T], link: Link) -> T | None:
    source, target = link.source, link.target
    found = rules.get((source, target))
    if found is not None or not rules or source == target:
        return found
    for pair in ((source, ANY), (ANY, target), (ANY, ANY)):
        found = rules.get(pair)
        if found is not None:
            return found
    return None
