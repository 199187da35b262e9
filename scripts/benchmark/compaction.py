"""Compaction: its throughput, its memory, and its effect on the latency of producers.

The topic is filled with a min.cleanable.dirty.ratio at which no log is cleaned. Then the ratio is lowered, and the
measurement ends when all closed segments are clean, which both servers record in cleaner-offset-checkpoint.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from scripts.benchmark.cases import RUN, Case, LatencyOf, Measured, Meter, Shared, Work, fresh_topic, per_megabyte
from scripts.benchmark.clients import BROKER, TOPIC, Connection, fill
from scripts.benchmark.peers import Peer

KEYS = 200_000
UNTOUCHED = {
    "cleanup_policy": "compact",
    "segment_bytes": str(64 << 20),
    # No log is dirty enough for this.
    "min_cleanable_dirty_ratio": "1.0",
}
LOOK_S = 0.02


class Filled:
    """A compacted topic with one partition that the cleaner has not touched yet."""

    def __init__(self, peer: Peer, megabytes: int) -> None:
        self.peer = peer
        self.name = fresh_topic(peer, 1, **UNTOUCHED)
        fill(peer, self.name, megabytes, KEYS)
        os.sync()
        [self.directory] = peer.directory.glob(f"data/**/{self.name}-0")
        segments = sorted(self.directory.glob("*.log"))
        self.active = int(segments[-1].stem)
        self.closed_bytes = sum(path.stat().st_size for path in segments[:-1])

    @contextmanager
    def cleaning(self) -> Iterator[None]:
        """Make the cleaner look for work ten times a second and clean this topic; delete the topic afterwards."""
        with closing(Connection(self.peer.port)) as connection:
            try:
                connection.alter_configs(BROKER, "", {"log.cleaner.backoff.ms": "100"})
                connection.alter_configs(TOPIC, self.name, {"min.cleanable.dirty.ratio": "0.01"})
                yield
            finally:
                connection.alter_configs(BROKER, "", {"log.cleaner.backoff.ms": None})
                connection.delete_topic(self.name)

    def begun(self) -> bool:
        return any(self.directory.glob("*.cleaned")) or self.clean()

    def clean(self) -> bool:
        """Return whether all closed segments are clean, by the checkpoint: a line is `topic partition offset`."""
        path: Path = self.peer.directory / "data" / "cleaner-offset-checkpoint"
        if not path.exists():
            return False
        rows = [line.split() for line in path.read_text().splitlines()]
        return any(row[:2] == [self.name, "0"] and int(row[2]) >= self.active for row in rows if len(row) == 3)

    def wait(self, what: Callable[[], bool], deadline_s: float = 300) -> float:
        """Wait until `what` is true; return the server's peak memory until then, in MiB."""
        end = time.monotonic() + deadline_s
        peak = 0.0
        while not what():
            peak = max(peak, self.peer.resident_mib())
            if time.monotonic() > end:
                raise SystemExit(f"{self.peer.name}: {self.name} was not compacted in {deadline_s} s")
            time.sleep(LOOK_S)
        return peak


class Compacting(Shared):
    """Throughput, peak memory, and its increase: three figures of one run."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        self.megabytes = megabytes

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        filled, meter = Filled(peer, self.megabytes), Meter(peer)
        before = peer.resident_mib()
        begin = time.perf_counter()
        with filled.cleaning():
            peak = filled.wait(filled.clean)
            took = time.perf_counter() - begin
        megabytes = filled.closed_bytes / 1e6
        # An increase below 1 MiB is not measurable.
        return meter.figures(per_megabyte(megabytes), megabytes / took, peak, max(peak - before, 1.0))


class BesideCompaction(LatencyOf):
    """Latency of another topic while a large one is compacted."""

    MEGABYTES = 1024

    def work(self) -> Work:
        return RUN

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        filled = Filled(peer, self.MEGABYTES)
        with filled.cleaning():
            filled.wait(filled.begun)
            figures = super().run(peer)
            if filled.clean():
                print(f"\n{peer.name}: the compaction was over before the latencies were taken", file=sys.stderr)
            filled.wait(filled.clean)
        return figures


def compaction_cases() -> list[Case]:
    compacting, beside = Compacting(512), BesideCompaction("produce", 4_000)
    more, less = "more", "less"
    return [
        Case("compaction, 512 MiB of 200,000 keys", "MB/s", more, 0.25, compacting.figure(0), rounds=3),
        Case("memory while compacting, peak with children", "MiB", less, 0.25, compacting.figure(1), rounds=3),
        Case("memory that compacting adds", "MiB", less, 1.0, compacting.figure(2), rounds=3),
        Case("p99 during compaction of 1 GiB", "us", less, 1.0, beside.figure(1), beside.prepare, rounds=3),
    ]  # fmt: skip
