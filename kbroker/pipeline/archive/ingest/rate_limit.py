"""A limit of records per second, kept by waiting between batches. Pure: the caller passes the time."""

from dataclasses import dataclass


@dataclass
class RateLimit:
    """At most `rate` records per second on average since the first batch, plus one batch."""

    rate: float
    _free_at_s: float | None = None  # when the rate allows the next batch

    def delay_s(self, now_s: float) -> float:
        """Return the seconds until the next batch may begin."""
        return 0.0 if self._free_at_s is None else max(0.0, self._free_at_s - now_s)

    def record_batch(self, records: int, now_s: float) -> None:
        """Count a batch that begins now."""
        self._free_at_s = max(now_s, self._free_at_s or now_s) + records / self.rate


def max_batch_records(configured: int | None, rate: float | None, interval_s: float) -> int | None:
    """Return the lower of the configured maximum and what the rate allows in an interval; None for no limit."""
    limits = [
        limit for limit in (configured, None if rate is None else max(1, int(rate * interval_s))) if limit is not None
    ]
    return min(limits, default=None)
