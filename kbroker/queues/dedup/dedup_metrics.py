"""The counters of deduplication."""


class DedupMetrics:
    """Counters since the start. `duplicates`: dropped records. `evicted`: keys removed before their window ended."""

    __slots__ = ("duplicates", "evicted")

    def __init__(self) -> None:
        self.duplicates = self.evicted = 0
