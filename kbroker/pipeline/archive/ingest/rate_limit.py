"""A limit of records per second, by waiting between batches. Pure: it is told the time."""

from dataclasses import dataclass


@dataclass
class RateLimit:
    """At most `rate` records/s on average since the first batch, so at most one batch above it at any time."""

    rate: float
    _free_at: float | None = None  # when all that was taken is paid for

    def wait(self, now_s: float) -> float:
        """Seconds until another batch may begin."""
        return 0.0 if self._free_at is None else max(0.0, self._free_at - now_s)

    def took(self, records: int, now_s: float) -> None:
        """A batch of so many records begins now."""
        self._free_at = max(now_s, self._free_at or now_s) + records / self.rate


def batch_size(most: int | None, rate: float | None, every_s: float) -> int | None:
    """Records of a batch at most: as told, and what the rate allows in an interval; None for no limit."""
    limits = [limit for limit in (most, None if rate is None else max(1, int(rate * every_s))) if limit is not None]
    return min(limits, default=None)
