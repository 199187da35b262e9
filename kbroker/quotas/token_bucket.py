"""A token bucket. What exceeds it is a debt, which time repays."""

from math import ceil, inf

# Of the field throttle_time_ms.
MAX_WAIT_MS = (1 << 31) - 1


class TokenBucket:
    """`rate`: tokens per second. `burst`: how many there are after a pause. Times are monotonic, in milliseconds."""

    __slots__ = ("burst", "rate", "tokens", "updated_ms")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        # Full at its first use.
        self.tokens = inf
        self.updated_ms = 0

    def available(self, now_ms: int) -> float:
        """Return how many tokens there are; negative during a debt."""
        self.tokens = min(self.burst, self.tokens + self.rate * (now_ms - self.updated_ms) / 1000)
        self.updated_ms = now_ms
        return self.tokens

    def take(self, tokens: float, now_ms: int) -> None:
        """Take tokens, also those that are not there yet."""
        self.tokens = self.available(now_ms) - tokens

    def wait_ms(self, now_ms: int) -> int:
        """Return after how many milliseconds the debt is repaid; 0 without one."""
        debt = -self.available(now_ms)
        return 0 if debt <= 0 else min(ceil(debt * 1000 / self.rate), MAX_WAIT_MS)

    def is_full(self, now_ms: int) -> bool:
        """Return whether a new bucket would be the same."""
        return self.available(now_ms) >= self.burst
