"""Paths in an archive, offset ranges, and Spark's offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import (
    OffsetRange,
    commit_path,
    data_name,
    decode_checkpoint_file,
    encode_assignment,
    encode_offsets,
    intersect_ranges,
    is_writer_id,
    merge_ranges,
    parse_data_path,
    parse_manifest_name,
    ranges_of,
    state_path,
    subtract_ranges,
    writer_id_of,
)
from kbroker.pipeline.archive.staging import new_writer_id
from kbroker.pipeline.errors import PipelineError


def test_names_of_manifest_files() -> None:
    assert commit_path(17) == "_manifest/00000000000000000017.json"
    assert state_path(100) == "_manifest/00000000000000000100.state.json"
    assert parse_manifest_name("00000000000000000017.json") == (17, False)
    assert parse_manifest_name("00000000000000000100.state.json") == (100, True)
    for name in ("17.json", ".00000000000000000017.json.x.tmp", "00000000000000000017.jsonx", "x"):
        assert parse_manifest_name(name) is None


def test_names_of_data_files() -> None:
    assert parse_data_path("topic=a.b-c_1/date=2024-02-29/x.parquet") == ("a.b-c_1", "2024-02-29")
    writer_id = new_writer_id()
    assert is_writer_id(writer_id)
    assert not is_writer_id("data-0")
    assert data_name("0123456789ab", 7) == "0123456789ab-00007.parquet"
    assert writer_id_of(f"topic=t/date=2024-02-29/{data_name(writer_id, 123_456)}") == writer_id
    assert writer_id_of("topic=t/date=2024-02-29/part-00000.parquet") is None


def ranges(*pairs: tuple[int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(*pair) for pair in pairs)


def test_merge() -> None:
    assert merge_ranges(ranges((5, 7), (0, 2), (2, 3), (6, 9), (4, 4))) == ranges((0, 3), (5, 9))


def test_subtract() -> None:
    assert subtract_ranges(ranges((0, 10)), ranges((2, 3), (8, 20))) == ranges((0, 2), (3, 8))
    assert subtract_ranges(ranges((0, 3), (5, 6)), ranges((0, 6))) == ()


def test_intersect() -> None:
    assert intersect_ranges(ranges((0, 10), (20, 30)), ranges((5, 25))) == ranges((5, 10), (20, 25))


def test_ranges_of_single_offsets() -> None:
    assert ranges_of([4, 1, 2, 9]) == ranges((1, 3), (4, 5), (9, 10))


OFFSETS = st.frozensets(st.integers(0, 20))


@given(OFFSETS, OFFSETS)
def test_the_operations_are_those_of_sets(first: frozenset[int], second: frozenset[int]) -> None:
    assert merge_ranges([*ranges_of(first), *ranges_of(second)]) == ranges_of(first | second)
    assert subtract_ranges(ranges_of(first), ranges_of(second)) == ranges_of(first - second)
    assert intersect_ranges(ranges_of(first), ranges_of(second)) == ranges_of(first & second)


# Written by Spark 4.0.5.
SPARK_OFFSETS = (
    b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795306436628,"conf":{}}\n{"a.b":{"0":5,"1":6},"c":{"0":0}}'
)
INITIAL = b'\0v1\n{"a.b":{"0":0,"1":17}}'


def test_checkpoint_files_are_decoded():
    assert decode_checkpoint_file(SPARK_OFFSETS, "x") == {
        TopicPartition("a.b", 0): 5,
        TopicPartition("a.b", 1): 6,
        TopicPartition("c", 0): 0,
    }
    assert decode_checkpoint_file(INITIAL, "x") == {TopicPartition("a.b", 0): 0, TopicPartition("a.b", 1): 17}
    assert decode_checkpoint_file(b"v1\n{}\n-", "x") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"v1",
        b"v2\n{}\n{}",
        SPARK_OFFSETS[:-1],
        SPARK_OFFSETS + b'\n{"d":{"0":1}}',
        b'v1\n{}\n{"logOffset":3}',
        b"v1\n{}\n17",
    ],
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
