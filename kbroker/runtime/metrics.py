"""What the broker counts while it serves: plain numbers, read when somebody asks for them (kbroker/exporter).

One set a broker. Nothing here knows of Prometheus: a request costs a few additions.
"""

from collections.abc import Sequence

# Latency histograms have a bucket for each power of 2 ns from this one on: 16 us, 33 us, ... The last that has a bound
# ends at 34 s.
FIRST_BITS = 14
BOUNDED = 22
LATENCY_BOUNDS_NS = tuple((1 << FIRST_BITS + number) - 1 for number in range(BOUNDED))
# As many as the bits of any time.
BUCKETS = 64


class Histogram:
    """Durations in nanoseconds: bucket n has those of at most LATENCY_BOUNDS_NS[n], and not those of bucket n - 1."""

    __slots__ = ("buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.total_ns = 0

    def observe(self, ns: int) -> None:
        self.total_ns += ns
        self.buckets[(ns >> FIRST_BITS).bit_length()] += 1

    @staticmethod
    def merged(several: "Sequence[Histogram]") -> "Histogram":
        """All of them as one."""
        whole = Histogram()
        for one in several:
            whole.total_ns += one.total_ns
            whole.buckets = [a + b for a, b in zip(whole.buckets, one.buckets, strict=True)]
        return whole


class RequestStats(Histogram):
    """Requests of one API in one version. Times are from the last byte's arrival to the answer's writing; bytes are
    those of whole frames without their length."""

    __slots__ = ("api_key", "bytes_in", "bytes_out", "requests", "version")

    def __init__(self, api_key: int, version: int) -> None:
        super().__init__()
        self.api_key = api_key
        self.version = version
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0


class MaintenanceStats:
    """Compactions and retention since the start. `reclaimed_bytes`: by compaction."""

    __slots__ = ("compaction_failures", "compaction_ms", "compactions", "reclaimed_bytes", "retention_segments")

    def __init__(self) -> None:
        self.compactions = 0
        self.compaction_failures = 0
        self.compaction_ms = 0
        self.reclaimed_bytes = 0
        self.retention_segments = 0

    def add_compaction(self, reclaimed_bytes: int, duration_ms: int) -> None:
        self.compactions += 1
        self.compaction_ms += duration_ms
        # Appends during the compaction may exceed what was reclaimed.
        self.reclaimed_bytes += max(reclaimed_bytes, 0)
