"""Reads records with timestamps that Spark's Kafka source does not hold, with kbroker's own consumer.

Spark fails for timestamps whose microseconds overflow 64 bits, and moves those before the Gregorian calendar by days.
So a batch that has one is read again here, on the driver, which is slower. Timestamps outside the years 1
to 9999, which most readers of tables cannot hold, become dead letters.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.decoding.dead_letters import make_dead_rows
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kbroker.client.requests import BrokerError
from kbroker.pipeline.ingest.batch_plan import BatchRange, TopicsChangedError
from protocol.errors import ErrorCode

POLL_RECORDS = 10_000
# The first and last milliseconds of the years 1 and 9999, and the first microsecond of the Gregorian calendar.
MIN_MS, MAX_MS = -62_135_596_800_000, 253_402_300_799_999
GREGORIAN_US = -12_219_292_800_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def is_inexact(rows: pa.RecordBatch) -> bool:
    """Return whether Spark may have changed a timestamp of these rows, or most readers cannot hold it."""
    micros = rows.column("timestamp").cast(pa.int64())
    bounds = pc.min_max(micros)
    return bool(rows.num_rows) and (bounds["min"].as_py() < GREGORIAN_US or bounds["max"].as_py() // 1000 > MAX_MS)


def read_exactly(
    cluster: ClusterClient, planned: BatchRange, committed_only: bool, now_ms: int
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield rows of the topic's table, and dead letters, in the order of their offsets.

    Raises TopicsChangedError if records were deleted meanwhile, and the errors of a ClusterClient.
    """
    isolation_level = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    consumer = PartitionConsumer(cluster, {planned.tp: planned.read_from}, isolation_level=isolation_level)
    while consumer.positions[planned.tp] < planned.end:
        try:
            records = consumer.poll(POLL_RECORDS)
        except BrokerError as error:
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise TopicsChangedError(f"{planned.tp}: records were deleted while they were read") from error
            raise
        records = [record for record in records if record.offset < planned.end]
        good = [record for record in records if MIN_MS <= record.timestamp <= MAX_MS]
        bad = [record for record in records if not MIN_MS <= record.timestamp <= MAX_MS]
        reasons = [f"the timestamp of {record.timestamp} ms is outside the years 1 to 9999" for record in bad]
        yield make_rows(good), make_dead_rows(make_rows(bad), reasons, now_ms)


def make_rows(records: Sequence[ConsumedRecord]) -> pa.RecordBatch:
    """Return records as rows of a topic's table. Timestamps outside the years 1 to 9999 become the nearest in them."""
    headers = [[{"key": key, "value": value} for key, value in record.headers] or None for record in records]
    micros = [min(max(record.timestamp, MIN_MS), MAX_MS) * 1000 for record in records]
    return pa.record_batch(
        {
            "partition": pa.array([record.partition for record in records], pa.int32()),
            "offset": pa.array([record.offset for record in records], pa.int64()),
            "timestamp": pa.array(micros, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([record.timestamp_type for record in records], pa.int32()),
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )
