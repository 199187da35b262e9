"""What a broker counts about idempotency keys."""


class DedupMetrics:
    """Counters since the start. `duplicates`: records that were left out; `evicted`: keys forgotten too early."""

    __slots__ = ("duplicates", "evicted")

    def __init__(self) -> None:
        self.duplicates = self.evicted = 0
