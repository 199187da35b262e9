"""Which failures of a query pass, and observations that are worth a commit."""

import pytest

from kbroker.pipeline.archive.ingest.brokers import Brokers, Ended, Stop
from kbroker.pipeline.archive.ingest.failures import passes
from kbroker.pipeline.archive.ingest.topic_observer import observation
from kbroker.pipeline.archive.manifest.model import ArchiveState, TopicInfo
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import BrokerGone


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.", True),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 120000 milliseconds", True),
        ("assertion failed: If startingOffsets contains specific offsets, you must specify all TopicPartitions.", True),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", False),
        ("org.apache.kafka.common.errors.CorruptRecordException: Record is corrupt", False),
        ("java.io.IOException: No space left on device", False),
        ("java.lang.ArithmeticException: long overflow", False),
    ],
)
def test_what_comes_of_brokers_that_were_away_passes(text, wanted):
    assert passes(RuntimeError(text)) is wanted
    wrapped = PipelineError("the batch failed")
    wrapped.__cause__ = RuntimeError(text)
    assert passes(wrapped) is wanted


def test_a_broker_that_does_not_answer_passes():
    assert passes(BrokerGone("cannot connect"))
    assert not passes(PipelineError("topic t does not exist"))


def test_a_question_is_asked_until_there_is_an_answer():
    said, answers = [], [BrokerGone("gone"), BrokerGone("gone"), 17]

    def question(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert Brokers("127.0.0.1:1", 60, Stop(), said.append).ask(question) == 17
    assert said == ["gone; waiting for it"]


def test_waiting_has_an_end_and_can_be_ended():
    def question(_):
        raise BrokerGone("gone")

    with pytest.raises(BrokerGone):
        Brokers("127.0.0.1:1", 0.1, Stop(), lambda _: None).ask(question)
    stop = Stop()
    with pytest.raises(Ended):
        Brokers("127.0.0.1:1", 600, stop, lambda _: stop.ask()).ask(question)


def test_only_what_is_new_is_observed():
    info, grown = TopicInfo("id", 1, {"a": "b"}), TopicInfo("id", 2, {"a": "b"})
    state = ArchiveState(topics={"t": info}, groups={"g": {"t": {0: 5}}})
    assert observation(state, {"t": info}, {"g": {"t": {0: 5}}}, 1) is None
    commit = observation(state, {"t": grown}, {"g": {"t": {0: 5}}}, 1)
    assert commit is not None
    assert (commit.kind, commit.topics, commit.groups) == ("observe", {"t": grown}, None)
    commit = observation(state, {"t": info}, {"g": {"t": {0: 6}}}, 1)
    assert commit is not None
    assert (commit.topics, commit.groups) == (None, {"g": {"t": {0: 6}}})


def test_a_topic_that_was_created_anew_stays_as_it_was_archived():
    state = ArchiveState(topics={"t": TopicInfo("old", 1, {})})
    assert observation(state, {"t": TopicInfo("new", 1, {})}, {}, 1) is None
