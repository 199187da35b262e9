"""One direction between two hosts: its latency, its bandwidth, and the fault rules that apply to it."""

import asyncio
from random import Random
from typing import Protocol, TypeVar

T = TypeVar("T")
# (Least, most), in seconds.
DelayRange = tuple[float, float]
# Source host, target host.
HostPair = tuple[str, str]

ANY = "*"


class LinkSender(Protocol):
    """Waits for a link that is cut or clogged."""

    def on_link_restored(self) -> None: ...


class Link:
    """A one-way link.

    Bytes that are sent while it is `cut` are lost; while it is `clogged` they wait. `latency_s` is one way. `rate` is
    in bytes per second; None means unlimited. `waiting` holds the senders that continue when it is neither cut nor
    clogged.
    """

    __slots__ = ("_free_at", "_loop", "_random", "clogged", "cut", "latency_s", "rate", "source", "target", "waiting")

    def __init__(
        self, source: str, target: str, loop: asyncio.AbstractEventLoop, random: Random, latency_s: DelayRange
    ) -> None:
        self.source = source
        self.target = target
        self.latency_s = latency_s
        self.cut = False
        self.clogged = False
        self.rate: float | None = None
        self.waiting: dict[LinkSender, None] = {}
        self._loop = loop
        self._random = random
        # The loop's time at which a slow link has transmitted everything sent so far.
        self._free_at = 0.0

    def delay_s(self) -> float:
        """Return the delay of bytes that are sent now."""
        least, most = self.latency_s
        delay = least + (most - least) * self._random.random()
        return delay if self.rate is None else delay + self.busy_s()

    def busy_s(self) -> float:
        """Return the seconds until a slow link can transmit something else."""
        return max(0.0, self._free_at - self._loop.time())

    def occupy(self, size: int) -> None:
        """Account for the transmission of `size` bytes."""
        if self.rate is not None:
            self._free_at = max(self._free_at, self._loop.time()) + size / self.rate

    def max_segment(self) -> int | None:
        """Return how many bytes a slow link transmits in 50 ms; None if the link is not slow."""
        return None if self.rate is None else max(1, int(self.rate / 20))

    def wake_senders(self) -> None:
        if self.cut or self.clogged:
            return
        waiting, self.waiting = self.waiting, {}
        for sender in waiting:
            sender.on_link_restored()


class LinkRules:
    """Fault rules by (source, target); either may be ANY.

    Where several rules match a link, the one that names more hosts applies. A host's link to itself only follows rules
    that name the host twice.
    """

    def __init__(self) -> None:
        self.latencies: dict[HostPair, DelayRange] = {}
        self.rates: dict[HostPair, float] = {}
        # The loop's time at which each clog ends.
        self.clogs: dict[HostPair, float] = {}
        self.cuts: dict[HostPair, bool] = {}

    def remove(self, pair: HostPair) -> None:
        for rules in (self.latencies, self.rates, self.clogs, self.cuts):
            rules.pop(pair, None)

    def clear(self) -> None:
        for rules in (self.latencies, self.rates, self.clogs, self.cuts):
            rules.clear()

    def apply(self, link: Link, default_latency_s: DelayRange) -> None:
        link.latency_s = _match(self.latencies, link) or default_latency_s
        link.rate = _match(self.rates, link)
        link.clogged = _match(self.clogs, link) is not None
        link.cut = _match(self.cuts, link) is not None
        if link.waiting:
            link.wake_senders()


def _match(rules: dict[HostPair, T], link: Link) -> T | None:
    source, target = link.source, link.target
    rule = rules.get((source, target))
    if rule is not None or not rules or source == target:
        return rule
    for pair in ((source, ANY), (ANY, target), (ANY, ANY)):
        rule = rules.get(pair)
        if rule is not None:
            return rule
    return None
