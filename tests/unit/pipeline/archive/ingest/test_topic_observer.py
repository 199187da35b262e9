"""Which observations of topics and groups are committed."""

from kbroker.pipeline.archive.ingest.topic_observer import observation
from kbroker.pipeline.archive.manifest.model import ArchiveState, TopicInfo


def test_only_changes_are_committed():
    info, grown = TopicInfo("id", 1, {"a": "b"}), TopicInfo("id", 2, {"a": "b"})
    state = ArchiveState(topics={"t": info}, groups={"g": {"t": {0: 5}}})
    assert observation(state, {"t": info}, {"g": {"t": {0: 5}}}, 1) is None
    commit = observation(state, {"t": grown}, {"g": {"t": {0: 5}}}, 1)
    assert commit is not None
    assert (commit.kind, commit.topics, commit.groups) == ("observe", {"t": grown}, None)
    commit = observation(state, {"t": info}, {"g": {"t": {0: 6}}}, 1)
    assert commit is not None
    assert (commit.topics, commit.groups) == (None, {"g": {"t": {0: 6}}})


def test_a_recreated_topic_is_ignored():
    state = ArchiveState(topics={"t": TopicInfo("old", 1, {})})
    assert observation(state, {"t": TopicInfo("new", 1, {})}, {}, 1) is None
