"""Measure delayed delivery on one partition: the rate of producing, the memory of pending records, and the lateness.

The rate: the same records, with the header TIMER_DELAY_MS, go to a topic without and to a topic with delayed delivery,
in turn. Then records that are due in a day are pending while other records become due, and a consumer (librdkafka)
compares the time at which it receives each with the time at which it was due. Client and broker share the machine.
--shapes measures what a delivery costs by how the records came (shapes.py), also of two source trees in turn.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import TYPE_CHECKING

from scripts.benchmark.capacity.__main__ import peers_of
from scripts.benchmark.clients import create_topic
from scripts.benchmark.delayed.shapes import SHAPES, measure_shapes
from scripts.benchmark.frame import footer, parser, rounds_text, running, scratch_directory
from scripts.benchmark.peers import ROOT, Peer
from scripts.benchmark.report import spread

if TYPE_CHECKING:
    from confluent_kafka import Producer

DAY_MS = 24 * 3600 * 1000
# Records that become due, and the time over which they do.
DUE, FIRST_S, LAST_S = 2_000, 3.0, 23.0
RECEIVE_S = 60.0


def producer_of(bootstrap: str) -> Producer:
    from confluent_kafka import Producer

    return Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 65536, "enable.idempotence": True,
        "queue.buffering.max.kbytes": 65536,
    })  # fmt: skip


def fill(bootstrap: str, topic: str, records: int, size: int, delay_ms: int) -> float:
    """Write records with the same delay; return records per second until the last one is acknowledged."""
    producer = producer_of(bootstrap)
    producer.list_topics(topic, 10)
    value, headers = b"x" * size, [("TIMER_DELAY_MS", str(delay_ms).encode())]
    begin = time.perf_counter()
    for _ in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=0, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    return records / (time.perf_counter() - begin)


def lateness_ms(bootstrap: str, topic: str) -> list[float]:
    """Write records that become due, and return how late each was received, in ms; a negative number is early."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(1.0)
    producer = producer_of(bootstrap)
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
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    begin = time.perf_counter()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(0.2)
    producer = producer_of(bootstrap)
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


def main() -> int:
    options = parser("--delayed", __doc__, 5)
    options.add_argument("--records", type=int, default=200_000, help="in each round of producing")
    options.add_argument("--pending", type=int, default=1_000_000)
    options.add_argument("--size", type=int, default=100, help="bytes of a value")
    options.add_argument("--shapes", action="store_true", help="only the cost of deliveries, by how the records came")
    options.add_argument("--kbroker", metavar="[LABEL=]DIR", action="append", default=[],
                         help="with --shapes: measure this source tree; repeatable")  # fmt: skip
    args = options.parse_args()
    with scratch_directory() as base:
        peers = peers_of(base, args.kbroker or [f"kbroker={ROOT}"])
        with running(*(peer for _, peer in peers)):
            print(footer(f"values of {args.size} bytes", f"{rounds_text(args.rounds)} of {args.records:,} records\n"))
            if args.shapes:
                for _, peer in peers:
                    create_topic(peer, "bystander", 1)
                measure_shapes(peers, SHAPES, args.size)
            else:
                print("| figure | measured |\n|---|---|")
                measure_pending(peers[0][1], args.pending, args.size)
                compare_rates(peers[0][1], args.records, args.size, args.rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
