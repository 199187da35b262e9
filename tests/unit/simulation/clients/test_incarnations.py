"""The history of a topic ends with its deletion."""

import re

import pytest

from kbroker.simulation.clients.workloads.incarnations import NO_OFFSET, BrokenDeletion, Incarnation


@pytest.fixture
def topic() -> Incarnation:
    """With two acknowledged records, and one that was sent without a response."""
    topic = Incarnation(bytes(16))
    topic.send([1, 2, 3])
    topic.acknowledge(0, [1, 2], after_deletion=False)
    return topic


def broken(what: str) -> "pytest.RaisesContext[BrokenDeletion]":
    return pytest.raises(BrokenDeletion, match=re.escape(what))


@pytest.mark.parametrize("records", [[(0, 1), (1, 2)], [(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 2), (2, 3), (3, 3)]])
def test_a_record_without_a_response_may_be_there_or_not(topic: Incarnation, records: list[tuple[int, int]]):
    topic.read_whole(records, topic.acknowledged)


def test_records_of_another_incarnation(topic: Incarnation):
    with broken("offset 2 has value 4, which was sent to another topic id"):
        topic.read([(0, 1), (1, 2), (2, 4)], after_deletion=False)


def test_an_acknowledged_record_is_lost(topic: Incarnation):
    with broken("lost: [(1, 2)]"):
        topic.read_whole([(0, 1)], topic.acknowledged)


def test_what_is_acknowledged_during_the_read_may_be_missing(topic: Incarnation):
    before = topic.acknowledged
    topic.acknowledge(2, [3], after_deletion=False)
    topic.read_whole([(0, 1), (1, 2)], before)


def test_the_log_does_not_begin_at_offset_0():
    topic = Incarnation(bytes(16))
    topic.send([1])
    with broken("begins at offset 7"):
        topic.read_whole([(7, 1)], {})


def test_an_offset_with_two_values(topic: Incarnation):
    with broken("offset 1 has the values 2 and 3"):
        topic.read([(1, 3)], after_deletion=False)


def test_an_acknowledgement_after_the_deletion(topic: Incarnation):
    with broken("values [3] were acknowledged after the deletion"):
        topic.acknowledge(2, [3], after_deletion=True)


def test_a_read_after_the_deletion(topic: Incarnation):
    topic.read([], after_deletion=True)
    with broken("offset 0 was read after the deletion"):
        topic.read([(0, 1)], after_deletion=True)


def test_committed_offsets_of_another_incarnation(topic: Incarnation):
    topic.read_committed(NO_OFFSET)
    topic.commit(10)
    topic.read_committed(10)
    with broken("the committed offset 11 is that of another topic id"):
        topic.read_committed(11)
