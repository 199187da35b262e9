"""What a run subscribes to, its note, and Spark's files of offsets."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.subscription import (
    Note,
    Subscription,
    note_of,
    note_text,
    offsets_text,
    source_offsets,
    subscription,
)
from kbroker.pipeline.errors import PipelineError

# As Spark 4.0.5 wrote them.
OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795306436628,"conf":{}}\n{"a.b":{"0":5,"1":6},"c":{"0":0}}'
INITIAL = b'\0v1\n{"a.b":{"0":0,"1":17}}'


def test_topics_are_sorted_and_told_apart_from_a_pattern():
    assert subscription(["b", "a", "b"], None) == Subscription(("a", "b"))
    assert subscription(["b", "a"], None).option == ("subscribe", "a,b")
    assert subscription([], "a.*").option == ("subscribePattern", "a.*")


@pytest.mark.parametrize(("topics", "pattern"), [([], None), (["a"], "b"), (["a,b"], None), ([""], None)])
def test_nothing_both_and_no_name_are_refused(topics, pattern):
    with pytest.raises(PipelineError):
        subscription(topics, pattern)


def test_a_note_reads_as_it_was_written():
    for wanted in (Subscription(("a", "b")), Subscription((), "a.*")):
        note = Note("archive", "query", wanted, True, {TopicPartition("a", 10): 7, TopicPartition("a", 2): 0})
        assert note_of(note_text(note), "there") == note


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": "other", "version": 1}', b"\xff", b'{"format"'])
def test_another_file_is_no_note(data):
    with pytest.raises(PipelineError, match="there is no note"):
        note_of(data, "there")


def test_offsets_of_spark_are_read():
    assert source_offsets(OFFSETS, "x") == {
        TopicPartition("a.b", 0): 5,
        TopicPartition("a.b", 1): 6,
        TopicPartition("c", 0): 0,
    }
    assert source_offsets(INITIAL, "x") == {TopicPartition("a.b", 0): 0, TopicPartition("a.b", 1): 17}
    assert source_offsets(b"v1\n{}\n-", "x") == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"v1", b"v2\n{}\n{}", OFFSETS[:-1], OFFSETS + b'\n{"d":{"0":1}}', b'v1\n{}\n{"logOffset":3}', b"v1\n{}\n17"],
)
def test_offsets_that_are_cut_or_of_another_source_are_refused(data):
    with pytest.raises(PipelineError, match="there is not of a query that reads topics"):
        source_offsets(data, "there")


def test_offsets_are_given_to_spark_as_it_reads_them():
    assert offsets_text({TopicPartition("b", 1): 2, TopicPartition("a", 0): 1}) == '{"a":{"0":1},"b":{"1":2}}'
    assert offsets_text({}) == "{}"
