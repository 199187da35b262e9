"""What the hosts of a simulated network share: the links between them, the trace, the source of randomness."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

from kbroker.simulation.network.link import DelayRange, Link, LinkRules

# Called with the event ("bytes", "open", "close", "reset"), source, target, number of bytes, and their CRC-32.
Trace = Callable[[str, str, str, int, int], None]


class Fabric:
    """All links of a network. `injected` counts the faults that were injected, by name.

    `reset_chance` is the probability that a segment is cut at a random byte and followed by a reset.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.trace: Trace | None = None
        self.injected: Counter[str] = Counter()
        self.reset_chance = 0.0
        self.rules = LinkRules()
        self._latency_s: DelayRange = (0.000_05, 0.000_5)
        self._links: dict[tuple[str, str], Link] = {}

    @property
    def latency_s(self) -> DelayRange:
        """The one-way latency of links without a latency rule."""
        return self._latency_s

    @latency_s.setter
    def latency_s(self, latency_s: DelayRange) -> None:
        self._latency_s = latency_s
        self.apply_rules()

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target, self.loop, self.random, self._latency_s)
            self.rules.apply(link, self._latency_s)
        return link

    def apply_rules(self) -> None:
        """Apply changed rules to the existing links."""
        for link in self._links.values():
            self.rules.apply(link, self._latency_s)
