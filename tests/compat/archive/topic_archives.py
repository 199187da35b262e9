"""Archives of topics, written without Spark from what a consumer reads."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbroker.archive.archive import Archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import TopicInfo
from kbroker.client.admin import describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kbroker.common import TopicPartition, uuid_text
from tests.compat.support import DEADLINE_S, eventually
from tests.unit.support.archive_tables import HEADERS

NEW_YEAR_MS = 1_767_225_600_000
DAY_MS = 86_400_000
Row = dict[str, Any]


def various_records(count: int, partitions: int = 2, interval_ms: int = DAY_MS // 64) -> Iterator[Row]:
    """Yield records over some days, with null and empty keys and values, and headers that repeat or have no value.

    They are arguments of confluent-kafka's produce.
    """
    headers: list[Any] = [None, [("a", b"1")], [("a", None), ("b", b"x")], [("a", b""), ("a", b"2")]]
    for n in range(count):
        yield {
            "key": (None, b"", f"key-{n}".encode())[n % 3],
            "value": (f"value-{n}".encode(), None, b"", b"x" * (n % 50))[n // 3 % 4],
            "headers": headers[n // 2 % 4] or [],
            "partition": n % partitions,
            "timestamp": NEW_YEAR_MS + n * interval_ms,
        }


@contextmanager
def connected(bootstrap: str) -> Iterator[ClusterClient]:
    host, _, port = bootstrap.rpartition(":")
    with ClusterClient([(host, int(port))], client_id=f"test-{os.getpid()}") as cluster:
        yield cluster


def archive_topic(
    archive: Archive,
    bootstrap: str,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    change: Callable[[list[Row]], Iterable[Row]] = lambda rows: rows,
) -> None:
    """Commit these offset ranges of a topic in one commit; `change` corrupts the rows first."""
    table = archive.create_table(topic)
    with connected(bootstrap) as cluster:
        [described] = describe_topics(cluster, [topic])
        rows = [
            row
            for partition, (start, end) in ranges.items()
            for row in _read(cluster, TopicPartition(topic, partition), start, end, archive.settings.committed_only)
        ]
    info = TopicInfo(uuid_text(described.topic_id), len(described.partitions), {})
    covered = [(partition, OffsetRange(*offsets)) for partition, offsets in ranges.items()]
    state = replace(table.state.with_covered(covered), topic=info)
    table.commit("append", state, add=write_rows(table.write_target(), [record_batch(change(rows))]))


def record_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    """Return rows as a batch with the columns of a table; timestamps are in milliseconds."""
    listed = list(rows)
    types = {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
    }
    values = {name: [row[name] for row in listed] for name in types}
    values["timestamp"] = [1000 * timestamp for timestamp in values["timestamp"]]
    return pa.record_batch({name: pa.array(values[name], kind) for name, kind in types.items()})


def _read(cluster: ClusterClient, tp: TopicPartition, start: int, end: int, committed_only: bool) -> Iterator[Row]:
    isolation_level = READ_COMMITTED if committed_only else READ_UNCOMMITTED
    consumer = PartitionConsumer(cluster, {tp: start}, isolation_level=isolation_level)
    while consumer.positions[tp] < end:
        yield from (_row(record) for record in consumer.poll(1000) if record.offset < end)


def _row(record: ConsumedRecord) -> Row:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type,
        "key": record.key,
        "value": record.value,
        "headers": [{"key": name, "value": value} for name, value in record.headers],
    }


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone from the metadata."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    with connected(bootstrap) as cluster:
        eventually(lambda: bool(describe_topics(cluster, [topic])[0].error_code), f"{topic} gone")


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
