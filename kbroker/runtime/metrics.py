"""Counters that the broker updates and kbroker/exporter reads. A request costs a few additions."""

from collections.abc import Sequence
from dataclasses import dataclass

# Latency histograms have a bucket for each power of two: up to 16 us, 33 us, ... 34 s, and more.
FIRST_BITS = 14
BOUNDED_BUCKETS = 22
LATENCY_BOUNDS_NS = tuple((1 << FIRST_BITS + number) - 1 for number in range(BOUNDED_BUCKETS))
# Enough for any 64-bit duration.
BUCKETS = 64


class Histogram:
    """Durations. Bucket n counts those up to LATENCY_BOUNDS_NS[n] that are not in a lower bucket."""

    __slots__ = ("buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.total_ns = 0

    def observe(self, ns: int) -> None:
        self.total_ns += ns
        self.buckets[(ns >> FIRST_BITS).bit_length()] += 1

    @staticmethod
    def merged(histograms: "Sequence[Histogram]") -> "Histogram":
        merged = Histogram()
        for histogram in histograms:
            merged.total_ns += histogram.total_ns
            merged.buckets = [a + b for a, b in zip(merged.buckets, histogram.buckets, strict=True)]
        return merged


class RequestStats(Histogram):
    """Requests of one API version.

    Durations are from the last byte of the request until the response is written. Bytes are those of the frames without
    their length field.
    """

    __slots__ = ("api_key", "bytes_in", "bytes_out", "requests", "version")

    def __init__(self, api_key: int, version: int) -> None:
        super().__init__()
        self.api_key = api_key
        self.version = version
        self.requests = 0
        self.bytes_in = 0
        self.bytes_out = 0


@dataclass(slots=True, eq=False)
class MaintenanceStats:
    """Counts of compactions and retention since the start. `reclaimed_bytes`: bytes freed by compaction."""

    compactions: int = 0
    compaction_failures: int = 0
    compaction_ms: int = 0
    reclaimed_bytes: int = 0
    retention_segments: int = 0

    def add_compaction(self, reclaimed_bytes: int, duration_ms: int) -> None:
        self.compactions += 1
        self.compaction_ms += duration_ms
        # Appends during the compaction may exceed the reclaimed bytes.
        self.reclaimed_bytes += max(reclaimed_bytes, 0)
