"""Measure delayed delivery on one partition: the rate of producing, the memory of pending records, and the lateness.

The rate: the same records, with the header TIMER_DELAY_MS, go to a topic without and to a topic with delayed delivery,
in turn. Then records that are due in a day are pending while other records become due, and a consumer (librdkafka)
compares the time at which it receives each with the time at which it was due. Client and broker share the machine.
--shapes measures what a delivery costs by how the records came, also of two source trees in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from protocol.records.batch import build_batch
from scripts.benchmark.capacity.__main__ import peers_of
from scripts.benchmark.clients import Connection, create_topic, librdkafka_producer, send
from scripts.benchmark.frame import footer, parser, rounds_text, running, scratch_directory
from scripts.benchmark.peers import ROOT, Peer
from scripts.benchmark.report import spread

if TYPE_CHECKING:
    from confluent_kafka import Consumer

DAY_MS = 24 * 3600 * 1000
# Records that become due, and the time over which they do.
DUE, FIRST_S, LAST_S = 2_000, 3.0, 23.0
RECEIVE_S = 60.0


def fill(bootstrap: str, topic: str, records: int, size: int, delay_ms: int) -> float:
    """Write records with the same delay; return records per second until the last one is acknowledged."""
    producer = librdkafka_producer(bootstrap)
    producer.list_topics(topic, 10)
    value, headers = b"x" * size, [("TIMER_DELAY_MS", str(delay_ms).encode())]
    begin = time.perf_counter()
    for _ in range(records):
        send(producer, topic, value, 0, headers)
    producer.flush()
    return records / (time.perf_counter() - begin)


def consumer_at_end(bootstrap: str, topic: str, settle_s: float) -> Consumer:
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(settle_s)
    return consumer


def lateness_ms(bootstrap: str, topic: str) -> list[float]:
    """Write records that become due, and return how late each was received, in ms; a negative number is early."""
    consumer = consumer_at_end(bootstrap, topic, 1.0)
    producer = librdkafka_producer(bootstrap)
    chosen = random.Random(1)
    now_ms = time.time() * 1000
    for _ in range(DUE):
        due_ms = math.ceil(now_ms + 1000 * chosen.uniform(FIRST_S, LAST_S))
        text = str(due_ms).encode()
        producer.produce(topic, text, partition=0, headers=[("TIMER_DELIVER_MS", text)])
    producer.flush()
    result: list[float] = []
    deadline = time.monotonic() + RECEIVE_S
    while len(result) < DUE and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        received_ms = time.time() * 1000
        if message is not None:
            if message.error() is not None:
                raise SystemExit(f"{topic}: {message.error()}")
            result.append(received_ms - int(message.value()))
    consumer.close()
    if len(result) < DUE:
        raise SystemExit(f"{topic}: {len(result)} of {DUE} records in {RECEIVE_S:g} s")
    return sorted(result)


def first_delivery_s(bootstrap: str, topic: str) -> float:
    """Return the time until a record that is due at once is received."""
    begin = time.perf_counter()
    consumer = consumer_at_end(bootstrap, topic, 0.2)
    producer = librdkafka_producer(bootstrap)
    producer.produce(topic, b"first", partition=0, headers=[("TIMER_DELAY_MS", b"1")])
    producer.flush()
    while (message := consumer.poll(1.0)) is None or message.error() is not None:
        if time.perf_counter() > begin + RECEIVE_S:
            raise SystemExit(f"{topic}: nothing was delivered in {RECEIVE_S:g} s")
    consumer.close()
    return time.perf_counter() - begin


def compare_rates(broker: Peer, records: int, size: int, rounds: int) -> None:
    rates: dict[str, list[float]] = {"without": [], "with": []}
    for number in range(rounds + 1):
        for side in ("without", "with") if number % 2 else ("with", "without"):
            topic = f"rate-{side}-{number}"
            create_topic(broker, topic, 1, kbroker_delay_enable=str(side == "with").lower())
            rate = fill(broker.bootstrap, topic, records, size, DAY_MS)
            if number:
                rates[side].append(rate)
    plain, delayed = (statistics.median(rates[side]) for side in ("without", "with"))
    print(f"| produce to a topic without / with delayed delivery, records/s | {plain:,.0f} "
          f"±{spread(rates['without']):.0%} / {delayed:,.0f} ±{spread(rates['with']):.0%} "
          f"= **{delayed / plain:.2f}** |", flush=True)  # fmt: skip


def measure_pending(broker: Peer, pending: int, size: int) -> None:
    create_topic(broker, "pending", 1, kbroker_delay_enable="true")
    for count in dict.fromkeys((0, pending)):
        before = broker.resident_mib()
        if count:
            fill(broker.bootstrap, "pending", count, size, DAY_MS)
            grown = (broker.resident_mib() - before) * 2**20 / count
            print(f"| resident memory of {count:,} pending records | {grown:.0f} bytes per record |")
        late = lateness_ms(broker.bootstrap, "pending")
        early = sum(one < 0 for one in late)
        case = f"lateness with {count:,} pending records: p50, p99, maximum; records delivered early"
        print(f"| {case} | {late[len(late) // 2]:.1f} ms, "
              f"{late[len(late) * 99 // 100]:.1f} ms, {late[-1]:.1f} ms; {early} |", flush=True)  # fmt: skip
    for how in ("stop", "kill"):
        getattr(broker, how)()
        begin = time.perf_counter()
        broker.start()
        started = time.perf_counter() - begin
        first = first_delivery_s(broker.bootstrap, "pending")
        print(f"| start after {how} with {pending:,} pending records; until a record is delivered "
              f"| {started:.2f} s; {started + first:.2f} s; {broker.resident_mib():.0f} MiB resident |",
              flush=True)  # fmt: skip


# What the delivery of records that are due within a second costs, by how they came, and what others notice.
#
# Each shape is a number of pending records, of records in a batch, and whether their due times are in the order of
# their arrival or scattered. Processor time is the broker's, from 1.5 s before the first is due. It includes the
# bystander: a producer to another topic, a process of its own, which sends a record every 2 ms. The broker has a core
# of its own: when it becomes busy, Linux may leave the bystander on its core until the next tick, 4 ms later.

QUIET_S, PROBE_S = 4.0, 0.002
# The first estimate of how long producing a batch takes, and the limit of delivering.
BATCH_S, DEADLINE_S = 0.0005, 60.0
IN_FLIGHT = 64
SHAPES_HEADING = (
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
        command = [sys.executable, "-m", "scripts.benchmark.queues.delayed", "--bystander", str(peer.port)]
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


def fill_shape(peer: Peer, shape: Shape, size: int) -> tuple[str, float]:
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


class Delivery(NamedTuple):
    """One delivery of a shape. `quiet_ms`, `meanwhile_ms`: the bystander's latencies before it and during it."""

    delivered: int
    seconds: float
    processor_s: float
    quiet_ms: list[float]
    meanwhile_ms: list[float]


def deliver(peer: Peer, shape: Shape, size: int) -> Delivery:
    total, (topic, start_s) = shape.due + shape.later, fill_shape(peer, shape, size)
    client = Connection(peer.port)
    bystander = Bystander(peer)
    begin = time.monotonic() + max(start_s - time.time(), 0)
    quiet_begin = begin - QUIET_S
    # Records are read from the log a second before they are due.
    time.sleep(max(begin - 1.5 - time.monotonic(), 0))
    quiet_end, before = time.monotonic(), peer.processor_time().total
    while (delivered := client.latest(topic) - total) < shape.due and time.monotonic() < begin + DEADLINE_S:
        time.sleep(0.1)
    end = time.monotonic()
    used = peer.processor_time().total - before
    client.close()
    trips = bystander.end()
    return Delivery(
        delivered, end - begin, used, between(trips, quiet_begin, quiet_end), between(trips, quiet_end, end)
    )


def shape_row(label: str, peer: Peer, shape: Shape, size: int, rounds: int) -> str:
    """Return a row of several deliveries: the slowest, the processor time of all, and the p99 of all latencies.

    In a single second 500 latencies have a p99 that differs by a factor of two, also without any delivery.
    """
    all_rounds = [deliver(peer, shape, size) for _ in range(rounds)]
    slowest = max(all_rounds, key=lambda each: (shape.due - each.delivered, each.seconds))
    within = f"{slowest.seconds:.1f} s"
    if slowest.delivered < shape.due:
        within = f"{slowest.delivered:,} in {slowest.seconds:.0f} s"
    delivered = sum(each.delivered for each in all_rounds)
    each_ms = sum(each.processor_s for each in all_rounds) * 1000 / max(delivered, 1)
    quiet = p99(sorted(chain.from_iterable(each.quiet_ms for each in all_rounds)))
    meanwhile = p99(sorted(chain.from_iterable(each.meanwhile_ms for each in all_rounds)))
    return f"| {shape.text} | {label} | {within} | {each_ms:.3f} ms | {quiet:.1f} / {meanwhile:.1f} ms |"


def measure_shapes(peers: Sequence[tuple[str, Peer]], shapes: Sequence[Shape], size: int, rounds: int) -> None:
    """Print a row for each shape and server, which are measured in turn."""
    print(SHAPES_HEADING)
    for shape in shapes:
        for label, peer in peers:
            print(shape_row(label, peer, shape, size, rounds), flush=True)


def run_bystander(port: int) -> None:
    """Produce until standard input is closed, and write the latencies."""
    import select

    # Its own collections of garbage would be measured: some milliseconds.
    gc.disable()
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


def main() -> int:
    options = parser("--delayed", __doc__, 5)
    options.add_argument("--records", type=int, default=200_000, help="in each round of producing")
    options.add_argument("--pending", type=int, default=1_000_000)
    options.add_argument("--size", type=int, default=100, help="bytes of a value")
    options.add_argument("--shapes", action="store_true", help="only the cost of deliveries, by how the records came")
    options.add_argument("--kbroker", metavar="[LABEL=]DIR", action="append", default=[],
                         help="with --shapes: measure this source tree; repeatable")  # fmt: skip
    options.add_argument("--bystander", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.bystander:
        run_bystander(args.bystander)
        return 0
    with scratch_directory() as base:
        peers = peers_of(base, args.kbroker or [f"kbroker={ROOT}"])
        first, *others = sorted(os.sched_getaffinity(0))
        if args.shapes and others:
            # What these start runs on the same core.
            os.sched_setaffinity(0, {first})
        with running(*(peer for _, peer in peers)):
            if args.shapes and others:
                os.sched_setaffinity(0, others)
            count = rounds_text(args.rounds) + ("" if args.shapes else f" of {args.records:,} records")
            print(footer(f"values of {args.size} bytes", f"{count}\n"))
            if args.shapes:
                for _, peer in peers:
                    create_topic(peer, "bystander", 1)
                measure_shapes(peers, SHAPES, args.size, args.rounds)
            else:
                print("| figure | measured |\n|---|---|")
                measure_pending(peers[0][1], args.pending, args.size)
                compare_rates(peers[0][1], args.records, args.size, args.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
