"""One direction between two hosts: how long bytes are on their way, and what is wrong with it."""

from random import Random

Range = tuple[float, float]


class Link:
    """`latency_s` is (least, most), one way."""

    __slots__ = ("latency_s", "random", "source", "target")

    def __init__(self, source: str, target: str, random: Random, latency_s: Range) -> None:
        self.source = source
        self.target = target
        self.random = random
        self.latency_s = latency_s

    def delay(self) -> float:
        """Seconds on the way, for bytes that leave now."""
        least, most = self.latency_s
        return least + (most - least) * self.random.random()
