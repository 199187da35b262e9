"""`kbroker bench`: measure producing and consuming, by default in a temporary topic."""

import os
import secrets
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.client import CLIENT_ERRORS, admin_client, client_error_text, partition_leaders, raise_error
from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import print_json
from kbroker.cli.common.stop_signals import SIGNALS, Interrupts
from kbroker.cli.common.values import INT32, PartitionPosition, count_text, format_size, parse_duration_ms, parse_size
from kbroker.client.cluster import ClusterClient

if TYPE_CHECKING:
    from kbroker.client.producer import BlockingProducer

SLOT_S, CHART_ROWS, BAR_WIDTH = 0.1, 10, 40
MAX_BYTES = 100 << 20  # of a record, and of a batch
# The values of records repeat. They are random letters, which compress by a quarter.
VALUES, VALUES_BYTES = 1000, 8 << 20
DEFAULT_RECORDS = 100_000


class Measurement:
    """Records and bytes over time, and latencies. Its memory does not grow with the number of records."""

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self._began_s = self._ended_s = monotonic()
        self._slots = Counter[int]()
        self._latencies = Counter[float]()  # records, by milliseconds with three digits

    def add(self, records: int, size: int, latency_s: float | None) -> None:
        """Add records that have just arrived. `size`: their bytes."""
        self._ended_s = monotonic()
        self.records += records
        self.bytes += size
        self._slots[int((self._ended_s - self._began_s) / SLOT_S)] += records
        if latency_s is not None:
            self._latencies[float(f"{latency_s * 1000:.3g}")] += records

    @property
    def seconds(self) -> float:
        """The time until the last record; not zero."""
        return max(self._ended_s - self._began_s, 1e-3)

    def latency_ms(self) -> dict[str, float] | None:
        """Return percentiles of the records' latencies, and the highest one."""
        if not self._latencies:
            return None
        ordered = sorted(self._latencies.items())
        found = {}
        for percent in (50, 95, 99):
            left = ceil(self._latencies.total() * percent / 100)
            found[f"p{percent}"] = next(ms for ms, count in ordered if (left := left - count) <= 0)
        return found | {"max": ordered[-1][0]}

    def chart(self) -> list[dict[str, int]]:
        """Return at most CHART_ROWS equal parts of the time, the last one shorter, with the rate in each."""
        slots = max(round(self.seconds / SLOT_S), 1)
        width = ceil(slots / CHART_ROWS)
        rows = []
        for first in range(0, slots, width):
            is_last = first + width >= slots
            count = sum(n for slot, n in self._slots.items() if first <= slot and (is_last or slot < first + width))
            seconds = self.seconds - first * SLOT_S if is_last else width * SLOT_S
            rows.append({"from_ms": round(first * SLOT_S * 1000), "records_per_second": round(count / seconds)})
        return rows


def print_report(action: str, topic: str, measured: Measurement, as_json: bool) -> None:
    """Print what was measured, if there is anything, with the rate over time as bars."""
    records, size, seconds = measured.records, measured.bytes, measured.seconds
    latency_ms, chart = measured.latency_ms(), measured.chart()
    if not records:
        return
    if as_json:
        print_json({
            "action": action, "topic": topic, "records": records, "bytes": size, "seconds": round(seconds, 3),
            "records_per_second": round(records / seconds), "megabytes_per_second": round(size / seconds / 1e6, 2),
            "latency_ms": latency_ms, "chart": chart,
        })  # fmt: skip
        return
    print(f"{action} {count_text(records, 'record')} ({format_size(size)}) in {seconds:.2f} s")
    print(f"{records / seconds:.0f} records/s, {size / seconds / 1e6:.1f} MB/s")
    if latency_ms is not None:
        print("latency: " + ", ".join(f"{name} {ms:g} ms" for name, ms in latency_ms.items()))
    highest = max(row["records_per_second"] for row in chart)
    for row in chart:
        bar = "█" * round(BAR_WIDTH * row["records_per_second"] / highest)
        print(f"{row['from_ms'] / 1000:7.1f} s  {bar:<{BAR_WIDTH}}  {row['records_per_second']}/s")


@contextmanager
def _bench_topic(cluster: ClusterClient, topic: str | None, partitions: int) -> Iterator[tuple[str, Interrupts]]:
    """Return the topic, or else a temporary one that is deleted at the end, also after Ctrl-C. Raises CliError."""
    from kbroker.client.admin import TopicSpec, create_topics, delete_topics

    name = topic or f"kbroker-bench-{secrets.token_hex(4)}"
    if topic is not None:
        partition_leaders(cluster, [topic])
    else:
        [created] = create_topics(cluster, {name: TopicSpec(partitions)})
        raise_error(created.error_code, created.error_message, f"topic {name}: ")
    try:
        with Interrupts(SIGNALS) as interrupts:
            yield name, interrupts
    finally:
        if topic is None:
            cluster.reset()  # an interrupted request is still in flight
            try:
                [deleted] = delete_topics(cluster, [name])
                raise_error(deleted.error_code, deleted.error_message)
            except (*CLIENT_ERRORS, CliError) as error:
                raise CliError(
                    f"topic {name} is left (kbroker topics delete {name}): {client_error_text(error)}"
                ) from None


def _random_values(size: int) -> list[bytes]:
    return [b64encode(os.urandom(size * 3 // 4 + 1))[:size] for _ in range(max(1, min(VALUES, VALUES_BYTES // size)))]


def _parse_bytes(text: str, name: str) -> int:
    size = parse_size(text)
    if not 1 <= size <= MAX_BYTES:
        raise usage_error(f"{name} must be between 1 byte and {format_size(MAX_BYTES)}, not {text!r}")
    return size


app = typer.Typer()

Topic = Annotated[
    str | None, argument("[TOPIC]", "An existing topic; without it, a temporary one.", complete=complete_topics)
]
RecordSize = Annotated[str, option("--size -s SIZE", "Size of each value.")]
Partitions = Annotated[int, option("--partitions -p N", "Partitions of the temporary topic.", min=1, max=INT32)]


@app.command("produce")
def produce(
    topic: Topic = None,
    records: Annotated[int, option("--records -n N", "Number of records.", min=1)] = DEFAULT_RECORDS,
    size: RecordSize = "100",
    rate: Annotated[
        int | None, option("--rate N", "Records per second at most.", min=1, max=INT32, show_default="no limit")
    ] = None,
    batch_size: Annotated[str, option("--batch-size SIZE", "Send a batch of this size at once.")] = "256KiB",
    linger: Annotated[str, option("--linger DURATION", "With --rate: send smaller batches after this time.")] = "5ms",
    acks: Annotated[str, option("0|1|all", "Acknowledgements to wait for.")] = "all",
    compression: Annotated[str | None, option("--compression -z CODEC", "gzip, snappy, lz4, zstd or none.")] = None,
    partitions: Partitions = 1,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Produce records as fast as one connection to each leader can, and report the rate and the latency.

    The latency of a record is the time from adding the first record of its batch to the acknowledgement. An existing
    TOPIC keeps the records.

    Example: kbroker bench produce --records 1000000 --size 1KiB --compression zstd
    """
    from kbroker.cli.records.produce import parse_acks, parse_codec
    from kbroker.client.producer import AcknowledgedBatch, BlockingProducer

    value_bytes, batch_bytes = _parse_bytes(size, "--size"), _parse_bytes(batch_size, "--batch-size")
    acks_number, codec, linger_s = parse_acks(acks), parse_codec(compression), parse_duration_ms(linger) / 1000
    values = _random_values(value_bytes)

    def acknowledged(batch: AcknowledgedBatch) -> None:
        count = len(batch.numbers)
        measured.add(count, count * value_bytes, batch.seconds if acks_number else None)

    with admin_client(bootstrap) as cluster, _bench_topic(cluster, topic, partitions) as (name, _):
        producer = BlockingProducer(
            cluster, acks=acks_number, codec=codec, batch_bytes=batch_bytes, on_acknowledged=acknowledged
        )
        producer.partition_count(name)  # a new topic needs a moment
        measured = Measurement()
        try:
            _produce(producer, name, values, records, rate, linger_s)
        finally:
            print_report("produced", name, measured, as_json)


def _produce(
    producer: "BlockingProducer", topic: str, values: list[bytes], records: int, rate: int | None, linger_s: float
) -> None:
    """Produce records, with `rate` in small batches at their time."""
    began_s = flushed_s = monotonic()
    sent = 0
    while sent < records:
        due = records if rate is None else min(records, int((monotonic() - began_s) * rate) + 1)
        if some := values[: due - sent]:
            producer.add_values(topic, some)
            sent += len(some)
        if rate is not None:
            if monotonic() - flushed_s >= linger_s:
                producer.flush()
                flushed_s = monotonic()
            sleep(max(0.0, min(began_s + sent / rate, flushed_s + linger_s) - monotonic()))
    producer.flush()


@app.command("consume")
def consume(
    topic: Topic = None,
    records: Annotated[
        int | None, option("--records -n N", "Stop after N records.", min=1, show_default="all of TOPIC, else 100000")
    ] = None,
    size: RecordSize = "100",
    partitions: Partitions = 1,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Consume the records of a topic from its beginning, and report the rate and the latency.

    Without TOPIC, records are produced to a temporary topic first. The latency of a record is the time of the poll that
    returned it.

    Example: kbroker bench consume orders --records 1000000
    """
    from kbroker.cli.records.polling import existing_partitions, find_bounds, read_partitions
    from kbroker.client.consumer import PartitionConsumer
    from kbroker.client.producer import BlockingProducer

    values = _random_values(_parse_bytes(size, "--size"))
    with admin_client(bootstrap) as cluster, _bench_topic(cluster, topic, partitions) as (name, interrupts):
        if topic is None:
            _produce(BlockingProducer(cluster), name, values, records or DEFAULT_RECORDS, None, 0.0)
        found = existing_partitions(cluster, [name], None)
        bounds = find_bounds(cluster, found, PartitionPosition("earliest"), None, follow=False)
        measured, polled_s = Measurement(), monotonic()
        try:
            for some in read_partitions(PartitionConsumer(cluster, {}), bounds, records, interrupts):
                latency_s = monotonic() - polled_s
                measured.add(len(some), sum(len(r.key or b"") + len(r.value or b"") for r in some), latency_s)
                polled_s = monotonic()
        finally:
            print_report("consumed", name, measured, as_json)
