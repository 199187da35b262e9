"""Checks that topics and archive are those that a run started with."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.consistency import (
    changed_topics,
    require_same_topics,
    require_single_run,
    require_untruncated_logs,
)
from kbroker.pipeline.archive.manifest.model import ArchiveState, TopicInfo
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from kbroker.pipeline.errors import PipelineError

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_a_truncated_log_is_rejected():
    require_untruncated_logs({A: 5, C: 9}, {A: 5, B: 0})
    with pytest.raises(PipelineError, match="t-0 ends at offset 4, but had offsets up to 5"):
        require_untruncated_logs({A: 5}, {A: 4})


def test_partitions_that_another_run_has_archived_are_rejected():
    state = ArchiveState(covered={A: (OffsetRange(0, 9),), B: (OffsetRange(0, 5),)})
    require_single_run({A: 9, B: 4}, state, [A])
    with pytest.raises(PipelineError, match="another `kbroker archive run` has archived t-1"):
        require_single_run({A: 9, B: 4}, state, [A, B])


def test_a_recreated_topic_is_rejected():
    state = ArchiveState(topics={"t": TopicInfo("old", 1, {}), "u": TopicInfo("", 1, {})})
    require_same_topics(state, {"t": TopicInfo("old", 2, {}), "u": TopicInfo("new", 1, {}), "v": TopicInfo("", 1, {})})
    with pytest.raises(PipelineError, match=r"topic t was deleted .* \(its id was old and is now new\)"):
        require_same_topics(state, {"t": TopicInfo("new", 1, {})})


def test_changed_topics():
    info = TopicInfo("id", 1, {"a": "b"})
    state = ArchiveState(topics={"t": info})
    assert changed_topics(state, {"t": info}) is None
    assert changed_topics(state, {"t": info, "u": info}) == {"u": info}
    assert changed_topics(state, {"t": info._replace(partitions=2)}) == {"t": info._replace(partitions=2)}
