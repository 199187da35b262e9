"""What the broker counts while it serves: plain numbers, read when somebody asks for them (kbroker/exporter).

One set a broker. Nothing here knows of Prometheus: a request costs a few additions.
"""

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds of the latency histograms in nanoseconds; one more bucket has what is above.
LATENCY_BOUNDS_NS: tuple[int, ...] = tuple(
    int(us * 1000)
    for us in (
        *(50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
        *(1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000),
    )
)


class Histogram:
    """Durations in nanoseconds by LATENCY_BOUNDS_NS; `buckets` are not cumulative."""

    __slots__ = ("buckets", "total_ns")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_NS) + 1)
        self.total_ns = 0

    def observe(self, ns: int) -> None:
        self.total_ns += ns
        self.buckets[bisect_left(LATENCY_BOUNDS_NS, ns)] += 1

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
