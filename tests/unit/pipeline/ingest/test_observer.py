"""What is observed of topics and groups, and which commits it makes."""

from kbroker.archive.topic_state import TopicInfo, TopicState
from kbroker.pipeline.ingest.observer import TopicObservation, with_observation

INFO, GROWN = TopicInfo("id", 1, {"a": "b"}), TopicInfo("id", 2, {"a": "b"})


def test_only_changes_are_included() -> None:
    state = TopicState(topic=INFO, groups={"g": {0: 5}}, groups_ms=1)
    assert with_observation(state, None) is state
    assert with_observation(state, TopicObservation(INFO, {"g": {0: 5}}, 9)) is state
    assert with_observation(state, TopicObservation(GROWN, {"g": {0: 5}}, 9)).topic == GROWN
    changed = with_observation(state, TopicObservation(INFO, {"g": {0: 6}}, 9))
    assert (changed.topic, changed.groups, changed.groups_ms) == (INFO, {"g": {0: 6}}, 9)


def test_a_recreated_topic_is_ignored() -> None:
    state = TopicState(topic=TopicInfo("old", 1, {}))
    assert with_observation(state, TopicObservation(TopicInfo("new", 1, {}), {}, 9)) is state
