"""What a broker counts about delayed delivery."""


class DelayMetrics:
    """Counters of records since the start.

    `delivered_records` are those that were due; `lateness_ms` is the sum of their latenesses, `max_lateness_ms` the
    largest. `delivered_early`: delivered on request.
    """

    __slots__ = (
        "cancelled", "delivered_early", "delivered_records", "lateness_ms", "max_lateness_ms", "stored_anew",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delivered_records = self.delivered_early = self.cancelled = self.stored_anew = 0
        self.lateness_ms = self.max_lateness_ms = 0

    def delivered(self, lateness_ms: list[int]) -> None:
        """Count records that were delivered that many ms after they were due."""
        self.delivered_records += len(lateness_ms)
        self.lateness_ms += sum(lateness_ms)
        self.max_lateness_ms = max([self.max_lateness_ms, *lateness_ms])
