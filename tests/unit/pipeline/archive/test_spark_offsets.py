"""Offsets in the JSON of Spark's Kafka source."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.spark_offsets import decode_checkpoint_file, encode_assignment, encode_offsets
from kbroker.pipeline.errors import PipelineError

# Written by Spark 4.0.5.
OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795306436628,"conf":{}}\n{"a.b":{"0":5,"1":6},"c":{"0":0}}'
INITIAL = b'\0v1\n{"a.b":{"0":0,"1":17}}'


def test_checkpoint_files_are_decoded():
    assert decode_checkpoint_file(OFFSETS, "x") == {
        TopicPartition("a.b", 0): 5,
        TopicPartition("a.b", 1): 6,
        TopicPartition("c", 0): 0,
    }
    assert decode_checkpoint_file(INITIAL, "x") == {TopicPartition("a.b", 0): 0, TopicPartition("a.b", 1): 17}
    assert decode_checkpoint_file(b"v1\n{}\n-", "x") == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"v1", b"v2\n{}\n{}", OFFSETS[:-1], OFFSETS + b'\n{"d":{"0":1}}', b'v1\n{}\n{"logOffset":3}', b"v1\n{}\n17"],
)
def test_truncated_files_and_files_of_other_sources_are_rejected(data):
    with pytest.raises(PipelineError, match=r"^f does not belong to a query that reads topics"):
        decode_checkpoint_file(data, "f")


def test_options_of_sparks_kafka_source():
    assert encode_offsets({TopicPartition("b", 1): 2, TopicPartition("a", 0): 1}) == '{"a":{"0":1},"b":{"1":2}}'
    assert encode_offsets({}) == "{}"
    assert encode_assignment([TopicPartition("b", 1), TopicPartition("a", 0), TopicPartition("b", 0)]) == (
        '{"a": [0], "b": [0, 1]}'
    )
