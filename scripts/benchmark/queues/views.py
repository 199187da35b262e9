"""Compare a view with a client that reads its source and selects the same records itself.

The topic has records of 1 KiB, and the header TAGS of 1 % of them is the one that is wanted. Both sides are the same
program with librdkafka, in turn, in processes of their own. Figures are medians; the spread is (max - min) / median.
Processor time is that of the client and of the broker together, and varies less than the rates on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from scripts.benchmark.clients import create_topic, librdkafka_producer, send
from scripts.benchmark.frame import footer, parser, rounds_text, running, scratch_directory
from scripts.benchmark.peers import Kbroker
from scripts.benchmark.report import spread

PARTITIONS = 4
WANTED, OTHER = b"paid", b"open"
SHARE = 0.01
BOUND, MAX_BYTES_SHARE = 5.0, 0.05
HEADING = (
    "| compression | client selects, records/s | view, records/s | ratio | processor time | ratio | bytes |\n"
    "|---|---|---|---|---|---|---|"
)


class Read(NamedTuple):
    """One read of the whole topic. `selected`: records with the wanted tag. `bytes`: received from the broker.

    `processor_s`: processor time of the client, and with that of the broker as soon as `measure` has added it.
    """

    seconds: float
    selected: int
    bytes: int
    processor_s: float


def fill(bootstrap: str, topic: str, records: int, size: int, compression: str) -> int:
    """Write the records; return how many have the wanted tag."""
    producer = librdkafka_producer(bootstrap, compression_type=compression)
    chosen = random.Random(1)
    # Half of a value is random, so that it compresses as JSON does, roughly.
    values = [chosen.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(100)]
    selected = 0
    for number in range(records):
        is_wanted = chosen.random() < SHARE
        selected += is_wanted
        headers = [("TAGS", WANTED if is_wanted else OTHER)]
        send(producer, topic, values[number % 100], number // 64 % PARTITIONS, headers)
    producer.flush()
    return selected


def read(bootstrap: str, topic: str, selects: bool) -> Read:
    """Read a topic to its end. `selects`: count only records with the wanted tag."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    received = 0

    def on_statistics(text: str) -> None:
        nonlocal received
        received = json.loads(text)["rx_bytes"]

    # An empty response ends a partition, so the wait for it counts.
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True,
        "fetch.wait.max.ms": 10, "statistics.interval.ms": 100, "stats_cb": on_statistics,
    })  # fmt: skip
    # Connections and metadata are not measured.
    consumer.list_topics(topic, 10)
    begin, processor_begin = time.perf_counter(), time.process_time()
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    selected, open_partitions = 0, set(range(PARTITIONS))
    while open_partitions:
        for message in consumer.consume(10_000, 0.05):
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(f"{topic}: {error}")
                open_partitions.discard(message.partition())
            elif not selects or (message.headers() or [("", b"")])[0][1] == WANTED:
                selected += 1
    seconds, processor_s = time.perf_counter() - begin, time.process_time() - processor_begin
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        consumer.poll(0.1)
    consumer.close()
    return Read(seconds, selected, received, processor_s)


def in_process(bootstrap: str, topic: str, selects: bool) -> Read:
    """Call `read` in a new process."""
    command = [sys.executable, "-m", "scripts.benchmark.queues.views", "--read", bootstrap, topic, str(int(selects))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Read(*json.loads(done.stdout))


def measure(broker: Kbroker, records: int, size: int, compression: str, rounds: int) -> dict[str, list[Read]]:
    source, view = f"orders-{compression}", f"paid-{compression}"
    create_topic(broker, source, PARTITIONS)
    configs = {"kbroker.view.of": source, "kbroker.view.filter": WANTED.decode()}
    create_topic(broker, view, -1, **configs)
    expected = fill(broker.bootstrap, source, records, size, compression)
    reads: dict[str, list[Read]] = {"client": [], "view": []}
    for number in range(rounds):
        sides = [("client", source), ("view", view)]
        for side, topic in sides if number % 2 else sides[::-1]:
            before = broker.processor_time().total
            result = in_process(broker.bootstrap, topic, side == "client")
            used = broker.processor_time().total - before
            result = result._replace(processor_s=result.processor_s + used)
            if result.selected != expected:
                raise SystemExit(f"{topic}: {result.selected} of {expected} records")
            reads[side].append(result)
    return reads


def row(compression: str, records: int, reads: dict[str, list[Read]]) -> tuple[str, float, float]:
    seconds = {side: [one.seconds for one in of] for side, of in reads.items()}
    bytes_of = {side: statistics.median([one.bytes for one in of]) for side, of in reads.items()}
    used = {side: statistics.median([one.processor_s for one in of]) for side, of in reads.items()}
    client, view = statistics.median(seconds["client"]), statistics.median(seconds["view"])
    share = bytes_of["view"] / bytes_of["client"]
    return (
        f"| {compression} | {records / client:,.0f} ±{spread(seconds['client']):.0%} "
        f"| {records / view:,.0f} ±{spread(seconds['view']):.0%} | **{client / view:.1f}** "
        f"| {1e6 * used['client'] / records:.2f} / {1e6 * used['view'] / records:.2f} us/record "
        f"| {used['client'] / used['view']:.1f} | {share:.1%} |",
        client / view,
        share,
    )  # fmt: skip


def main() -> int:
    options = parser("--views", __doc__, 3)
    options.add_argument("--records", type=int, default=500_000)
    options.add_argument("--size", type=int, default=1024, help="bytes of a value")
    options.add_argument("--compression", action="append", default=[], help="a codec or none; may be repeated")
    options.add_argument("--read", nargs=3, metavar=("BOOTSTRAP", "TOPIC", "SELECTS"), help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.read:
        print(json.dumps(read(args.read[0], args.read[1], args.read[2] == "1")))
        return 0
    is_met = True
    with scratch_directory() as base, running(broker := Kbroker(base / "kbroker")):
        print(footer(f"{args.records:,} records of {args.size} bytes", rounds_text(args.rounds)))
        print(HEADING)
        for compression in args.compression or ["none", "lz4"]:
            reads = measure(broker, args.records, args.size, compression, args.rounds)
            line, ratio, share = row(compression, args.records, reads)
            print(line, flush=True)
            is_met = is_met and ratio >= BOUND and share <= MAX_BYTES_SHARE
    if not is_met:
        print(f"below the bound: {BOUND:g} times as fast with {MAX_BYTES_SHARE:.0%} of the bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
