"""What a broker counts about delayed delivery."""


class DelayMetrics:
    """Counters since the start. `lateness_ms`: the sum over the delivered records; `max_lateness_ms`: the largest."""

    __slots__ = ("cancelled", "delivered_records", "lateness_ms", "max_lateness_ms", "stored_anew")

    def __init__(self) -> None:
        self.delivered_records = self.cancelled = self.stored_anew = 0
        self.lateness_ms = self.max_lateness_ms = 0

    def delivered(self, lateness_ms: list[int]) -> None:
        """Count records that were delivered that many ms after they were due."""
        self.delivered_records += len(lateness_ms)
        self.lateness_ms += sum(lateness_ms)
        self.max_lateness_ms = max([self.max_lateness_ms, *lateness_ms])
