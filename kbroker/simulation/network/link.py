"""Links: one direction between two hosts, its fault rules, all links of a network, and channels for whole messages."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
# (Least, most), in seconds.
DelayRange = tuple[float, float]
# Source host, target host.
HostPair = tuple[str, str]

ANY = "*"
# The one-way latency of links without a latency rule.
LATENCY_S: DelayRange = (0.000_05, 0.000_5)


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

    def __init__(self, source: str, target: str, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.source = source
        self.target = target
        self.latency_s = LATENCY_S
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

    def apply(self, link: Link) -> None:
        link.latency_s = _match(self.latencies, link) or LATENCY_S
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


# Called with the event ("bytes", "open", "close", "reset"), source, target, number of bytes, and their CRC-32.
Trace = Callable[[str, str, str, int, int], None]


class Fabric:
    """What the hosts of a network share: its links, the trace, the source of randomness.

    `injected` counts the faults that were injected, by name.

    `reset_chance` is the probability that a segment is cut at a random byte and followed by a reset.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.trace: Trace | None = None
        self.injected: Counter[str] = Counter()
        self.reset_chance = 0.0
        self.rules = LinkRules()
        self._links: dict[tuple[str, str], Link] = {}

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(source, target, self.loop, self.random)
            self.rules.apply(link)
        return link

    def apply_rules(self) -> None:
        """Apply changed rules to the existing links."""
        for link in self._links.values():
            self.rules.apply(link)


M = TypeVar("M")


class DelayedChannel(Generic[M]):
    """One direction of a connection that carries whole messages: in order, with a delay, each at most once.

    Passes messages to `receive` on the receiver's loop. Messages wait while `is_open` returns False.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        delay_s: Callable[[M], float],
        is_open: Callable[[], bool],
        receive: Callable[[M], None],
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._is_open = is_open
        self._receive = receive
        # Messages in flight, each with the loop's time at which it arrives.
        self._queue: deque[tuple[float, M]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_due = 0.0
        self._closed = False

    def send(self, message: M) -> None:
        if not self._closed:
            self._queue.append((self._due(message), message))
            self._schedule()

    def retransmit(self) -> None:
        """Send the messages that have waited, because the channel is open again."""
        self._last_due = 0.0
        self._queue = deque((self._due(message), message) for _, message in self._queue)
        self._schedule()

    def drop(self) -> None:
        """Lose the messages in flight."""
        self._queue.clear()

    def close(self) -> None:
        self._closed = True
        self.drop()

    def _due(self, message: M) -> float:
        self._last_due = max(self._last_due, self._loop.time() + self._delay_s(message))
        return self._last_due

    def _schedule(self) -> None:
        if self._timer is None and self._queue and self._is_open():
            self._timer = self._loop.call_at(self._queue[0][0], self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if self._queue and self._is_open():
            due, message = self._queue[0]
            if due <= self._loop.time():
                self._queue.popleft()
                self._receive(message)
            self._schedule()
