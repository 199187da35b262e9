"""Measure the delivery of records that are due within a second, by how they came, and what others notice.

Each shape is a number of pending records, of records in a batch, and whether their due times are in the order of their
arrival or scattered. Processor time is the broker's, from 1.5 s before the first is due. It includes the bystander: a
producer to another topic, a process of its own, which sends a record every 5 ms.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from protocol.records.batch import build_batch
from scripts.benchmark.clients import Connection, create_topic
from scripts.benchmark.peers import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET_S, PROBE_S = 4.0, 0.005
# The first estimate of how long producing a batch takes, and the limit of delivering.
BATCH_S, DEADLINE_S = 0.0005, 60.0
IN_FLIGHT = 64
HEADING = (
    "| pending, in batches of | due | tree | delivered within | processor time per record "
    "| bystander p99, quiet / meanwhile |\n|---|---|---|---|---|---|"
)


class Shape(NamedTuple):
    """`due`: records that are due in one second; `later`: others that are due in a day."""

    due: int
    per_batch: int
    is_scattered: bool
    later: int = 0

    @property
    def text(self) -> str:
        count = f"{self.due:,} of {self.due + self.later:,}" if self.later else f"{self.due:,}"
        return f"{count}, {self.per_batch:,} | {'scattered' if self.is_scattered else 'as they arrived'}"


SHAPES = [Shape(20_000, per_batch, is_scattered) for per_batch in (1000, 100, 1) for is_scattered in (False, True)]
SHAPES += [Shape(20_000, 1000, True, 980_000), Shape(20_000, 1, True, 80_000)]


class Bystander:
    """Its latencies in ms, each with when it began (s of the monotonic clock)."""

    def __init__(self, peer: Peer) -> None:
        command = [sys.executable, "-m", "scripts.benchmark.delayed.shapes", str(peer.port), "bystander"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> list[tuple[float, float]]:
        output, _ = self._process.communicate()
        return [(begin, ms) for begin, ms in json.loads(output)]


def between(trips: Sequence[tuple[float, float]], begin: float, end: float) -> list[float]:
    """Return the latencies of the requests that began in this period, in order."""
    return sorted(ms for at, ms in trips if begin <= at < end)


def p99(latencies: Sequence[float]) -> float:
    return latencies[len(latencies) * 99 // 100] if latencies else float("nan")


def batches(shape: Shape, start_ms: int, size: int) -> Iterator[bytearray]:
    """Yield the batches of a shape, whose records are due from `start_ms` on."""
    chosen, now_ms = random.Random(1), time.time_ns() // 1_000_000
    dues = sorted(start_ms + number * 1000 // shape.due for number in range(shape.due))
    dues += [start_ms + 86_400_000] * shape.later
    if shape.is_scattered:
        chosen.shuffle(dues)
    for at in range(0, len(dues), shape.per_batch):
        some = dues[at : at + shape.per_batch]
        yield build_batch([(now_ms, None, bytes(size), [(b"TIMER_DELIVER_MS", b"%d" % due)]) for due in some])


def fill(peer: Peer, shape: Shape, size: int) -> tuple[str, float]:
    """Write the records of a shape to a new topic. Returns its name, and when they are due (s since the epoch)."""
    total, client = shape.due + shape.later, Connection(peer.port)
    lead_s = 2.0 + BATCH_S * total / shape.per_batch
    while True:
        topic = f"shape-{time.time_ns()}"
        create_topic(peer, topic, 1, kbroker_delay_enable="true")
        begin_s = time.time()
        start_s = begin_s + lead_s + QUIET_S
        client.produce_batches(topic, batches(shape, round(start_s * 1000), size), IN_FLIGHT)
        if time.time() < start_s - QUIET_S:
            client.close()
            return topic, start_s
        lead_s = 1.5 * (time.time() - begin_s) + 1


def row(label: str, peer: Peer, shape: Shape, size: int) -> str:
    total, (topic, start_s) = shape.due + shape.later, fill(peer, shape, size)
    client = Connection(peer.port)
    bystander = Bystander(peer)
    begin = time.monotonic() + max(start_s - time.time(), 0)
    quiet_begin = begin - QUIET_S
    # Records are read from the log a second before they are due.
    time.sleep(max(begin - 1.5 - time.monotonic(), 0))
    quiet_end, before = time.monotonic(), peer.processor_time().total
    while (delivered := client.latest(topic) - total) < shape.due and time.monotonic() < begin + DEADLINE_S:
        time.sleep(0.02)
    end = time.monotonic()
    used = peer.processor_time().total - before
    client.close()
    every_trip = bystander.end()
    quiet_trips, trips = between(every_trip, quiet_begin, quiet_end), between(every_trip, quiet_end, end)
    how_many = f"{end - begin:.1f} s" if delivered >= shape.due else f"{delivered:,} in {end - begin:.0f} s"
    each_ms = f"{used * 1000 / max(delivered, 1):.3f} ms"
    quiet_ms, meanwhile_ms = p99(quiet_trips), p99(trips)
    return f"| {shape.text} | {label} | {how_many} | {each_ms} | {quiet_ms:.1f} / {meanwhile_ms:.1f} ms |"


def measure_shapes(peers: Sequence[tuple[str, Peer]], shapes: Sequence[Shape], size: int) -> None:
    """Print a row for each shape and server, which are measured in turn."""
    print(HEADING)
    for shape in shapes:
        for label, peer in peers:
            print(row(label, peer, shape, size), flush=True)


def run_bystander(port: int) -> None:
    """Produce until standard input is closed, and write the latencies."""
    import select

    client = Connection(port)
    trips: list[tuple[float, float]] = []
    due = time.monotonic()
    while not select.select([0], [], [], max(due - time.monotonic(), 0))[0]:
        begin = time.monotonic()
        if client.produce("bystander"):
            raise SystemExit("the bystander cannot produce")
        # Since it was due, so that it includes the wait for those before.
        trips.append((due, (time.monotonic() - due) * 1000))
        due = max(due + PROBE_S, begin)
    print(json.dumps(trips))


if __name__ == "__main__":
    run_bystander(int(sys.argv[1]))
