"""The counters of delayed delivery."""


class DelayMetrics:
    """Counters of records since the start.

    `delivered_records` were due; `lateness_ms` is the sum of their delays after the due time, `max_lateness_ms` the
    longest. `delivered_early` were delivered on request. `moved_records` were moved out of segments that retention
    deletes.
    """

    __slots__ = (
        "cancelled", "delivered_early", "delivered_records", "lateness_ms", "max_lateness_ms", "moved_records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delivered_records = self.delivered_early = self.cancelled = self.moved_records = 0
        self.lateness_ms = self.max_lateness_ms = 0

    def delivered(self, lateness_ms: list[int]) -> None:
        """Count delivered records. `lateness_ms`: for each, the ms since it was due."""
        self.delivered_records += len(lateness_ms)
        self.lateness_ms += sum(lateness_ms)
        self.max_lateness_ms = max([self.max_lateness_ms, *lateness_ms])
