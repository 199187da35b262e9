"""A machine's clocks in virtual time."""

from kbroker.simulation.runtime.loop import SimLoop

# A round number of milliseconds since the epoch, in January 2027.
EPOCH_MS = 1_800_000_000_000
# The monotonic clock when the simulation starts: the machine has been up for some time.
UPTIME_MS = 1_000_000


class SimClock:
    """The wall clock is off by `skew_ms`, which may change at any time; the monotonic clock is not affected."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms
        self._loop = loop

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + self._loop.elapsed_ns // 1_000_000

    def mono_ms(self) -> int:
        return UPTIME_MS + self._loop.elapsed_ns // 1_000_000

    def mono_ns(self) -> int:
        return UPTIME_MS * 1_000_000 + self._loop.elapsed_ns
