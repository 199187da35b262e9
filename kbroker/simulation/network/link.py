"""One direction between two hosts: how long bytes are on their way, and what is wrong with it."""

import asyncio
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.simulation.network.stack import StackEnd

Range = tuple[float, float]


class Link:
    """`latency_s` is (least, most), one way. What is sent while it is `cut` is lost; while it is `clogged` it waits.
    `rate`: of a slow link, in bytes a second."""

    __slots__ = ("_free_at", "_loop", "_random", "clogged", "cut", "latency_s", "rate", "source", "target", "waiting")

    def __init__(
        self, source: str, target: str, loop: asyncio.AbstractEventLoop, random: Random, latency_s: Range
    ) -> None:
        self.source = source
        self.target = target
        self.latency_s = latency_s
        self.cut = False
        self.clogged = False
        self.rate: float | None = None
        # Ends of connections that go on when it is neither cut nor clogged.
        self.waiting: dict[StackEnd, None] = {}
        self._loop = loop
        self._random = random
        # When a slow link has carried what was sent, in the loop's time.
        self._free_at = 0.0

    def delay(self) -> float:
        """Seconds on the way, for bytes that leave now."""
        least, most = self.latency_s
        delay = least + (most - least) * self._random.random()
        return delay if self.rate is None else delay + self.busy_s()

    def busy_s(self) -> float:
        """Seconds until a slow link can carry something else."""
        return max(0.0, self._free_at - self._loop.time())

    def carried(self, size: int) -> None:
        if self.rate is not None:
            self._free_at = max(self._free_at, self._loop.time()) + size / self.rate

    def most_at_once(self) -> int | None:
        """In bytes; of a slow link, what it carries in a twentieth of a second."""
        return None if self.rate is None else max(1, int(self.rate / 20))

    def go_on(self) -> None:
        """It has been mended or is not clogged any more."""
        if self.cut or self.clogged:
            return
        waiting, self.waiting = self.waiting, {}
        for end in waiting:
            end.may_send_again()
