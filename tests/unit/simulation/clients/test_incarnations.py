"""The history of a topic ends with its deletion."""

import re
from collections.abc import Callable

import pytest

from kbroker.simulation.clients.workloads.recreation import NO_OFFSET, BrokenDeletion, Incarnation


def topic() -> Incarnation:
    """Return a topic with two acknowledged records, and one that was sent without a response."""
    topic = Incarnation(bytes(16))
    topic.send([1, 2, 3])
    topic.acknowledge(0, [1, 2], after_deletion=False)
    return topic


@pytest.mark.parametrize("records", [[(0, 1), (1, 2)], [(0, 1), (1, 2), (2, 3)], [(0, 1), (1, 2), (2, 3), (3, 3)]])
def test_a_record_without_a_response_may_be_present_or_not(records: list[tuple[int, int]]):
    deleted = topic()
    deleted.check_log(records, deleted.acknowledged)


def read(*records: tuple[int, int], after_deletion: bool = False) -> Callable[[Incarnation], None]:
    return lambda topic: topic.read(records, after_deletion=after_deletion)


def check_log(*records: tuple[int, int]) -> Callable[[Incarnation], None]:
    return lambda topic: topic.check_log(records, topic.acknowledged)


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (read((0, 1), (1, 2), (2, 4)), "offset 2 has value 4, which was sent to another topic id"),
        (read((1, 3)), "offset 1 has the values 2 and 3"),
        (read((0, 1), after_deletion=True), "offset 0 was read after the deletion"),
        (check_log((0, 1)), "lost: [(1, 2)]"),
        (check_log((7, 1)), "begins at offset 7"),
        (
            lambda topic: topic.acknowledge(2, [3], after_deletion=True),
            "values [3] were acknowledged after the deletion",
        ),
    ],
)
def test_a_broken_deletion(check: Callable[[Incarnation], None], problem: str):
    with pytest.raises(BrokenDeletion, match=re.escape(problem)):
        check(topic())


def test_a_record_acknowledged_during_the_read_may_be_missing():
    deleted = topic()
    before = deleted.acknowledged
    deleted.acknowledge(2, [3], after_deletion=False)
    deleted.check_log([(0, 1), (1, 2)], before)
    deleted.read([], after_deletion=True)


def test_committed_offsets_of_another_incarnation():
    group = topic()
    group.read_committed(NO_OFFSET)
    group.commit(10)
    group.read_committed(10)
    with pytest.raises(BrokenDeletion, match="the committed offset 11 is that of another topic id"):
        group.read_committed(11)
