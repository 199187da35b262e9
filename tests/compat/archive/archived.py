"""Archives of topics, written without Spark."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import LeaderEpoch, TopicInfo
from kbroker.client.admin import describe_topics
from kbroker.client.consumer import ConsumedRecord
from kbroker.common import uuid_text
from kbroker.testing.kafka import Kafka
from tests.unit.support.archive_tables import HEADERS


def archive_topic(kafka: Kafka, directory: Path, topic: str, *, files: int = 4) -> ArchiveTable:
    """Archive all records of a topic that the archive does not have, in a few commits."""
    table = create_archive(str(directory), {"committed_only": True}).create_table(topic)
    with kafka.client() as cluster:
        (described,) = describe_topics(cluster, [topic])
    info = TopicInfo(uuid_text(described.topic_id), len(described.partitions), {})
    for partition in described.partitions:
        index = partition.partition_index
        resume = table.state.resume_offsets().get(index, 0)
        records = [each for each in kafka.consume(topic, partition=index, timeout_s=60) if each.offset >= resume]
        size = max(1, -(-len(records) // files))
        for start in range(0, len(records), size):
            part = records[start : start + size]
            state = replace(table.state, topic=info).with_covered(
                [(index, OffsetRange(part[0].offset, part[-1].offset + 1))]
            )
            state = replace(state, leader_epochs={**state.leader_epochs, index: (LeaderEpoch(0, 0),)})
            table.commit("append", state, add=write_rows(table.write_target(), [rows_of(part)]))
    return table


def rows_of(records: list[ConsumedRecord]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "partition": pa.array([each.partition for each in records], pa.int32()),
            "offset": pa.array([each.offset for each in records], pa.int64()),
            "timestamp": pa.array([1000 * each.timestamp for each in records], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([each.timestamp_type for each in records], pa.int32()),
            "key": pa.array([each.key for each in records], pa.binary()),
            "value": pa.array([each.value for each in records], pa.binary()),
            "headers": pa.array(
                [[{"key": key, "value": value} for key, value in each.headers] for each in records], HEADERS
            ),
        }
    )
