"""What members of a share group may see after an operator has altered offsets, or created a topic again."""

from __future__ import annotations

import pytest

from kbroker.share.delivery import AcknowledgeType
from kbroker.simulation.checker.history import Outcome
from kbroker.simulation.clients.workloads.share_rules import (
    BrokenShareGroup,
    ShareDelivery,
    SharedRecords,
    SharePolicy,
)

TP = "t", 0


class Story:
    """Members of a group, one second per step."""

    def __init__(self) -> None:
        self.records = SharedRecords(SharePolicy(delivery_limit=3, lock_s=1.0))
        self.now_s = 0.0

    def deliver(self, *offsets: int, first_value: int = 100, count: int = 1) -> None:
        self.now_s += 1
        records = {offset: (first_value + offset, count) for offset in offsets}
        self.records.deliver(ShareDelivery("m", TP, records, self.now_s, self.now_s))

    def accept(self, *offsets: int, outcome: Outcome = Outcome.OK) -> None:
        self.now_s += 1
        types = dict.fromkeys(offsets, AcknowledgeType.ACCEPT)
        self.records.end(self.records.begin("m", TP, types, self.now_s), outcome, self.now_s)

    def end(self, log: dict[int, int]) -> None:
        log_of_places = {(TP, offset): value for offset, value in log.items()}
        self.records.check_at_the_end(log_of_places, {}, is_complete=True)


def test_records_from_an_altered_start_on_are_processed_again() -> None:
    story = Story()
    story.deliver(0, 1)
    story.accept(0, 1)
    with pytest.raises(BrokenShareGroup, match="although it was acknowledged"):
        story.deliver(1)
    story.records.renew(TP, 1)
    with pytest.raises(BrokenShareGroup, match="no member has processed it"):
        story.end({0: 100, 1: 101})
    story.deliver(1)
    story.accept(1)
    story.end({0: 100, 1: 101})


def test_what_a_former_leader_delivers_before_the_start_cannot_be_acknowledged() -> None:
    story = Story()
    story.records.renew(TP, 5)
    story.deliver(3)
    story.accept(3, outcome=Outcome.FAILED)
    with pytest.raises(BrokenShareGroup, match="the group starts at 5"):
        story.accept(3)


def test_records_of_a_deleted_topic_count_for_nothing() -> None:
    story = Story()
    story.deliver(0)
    story.accept(0)
    story.records.delete([TP], [100, 101])
    # Some broker has not heard of it.
    story.deliver(0, 1, count=3)
    story.accept(1)
    story.deliver(0, first_value=200)
    with pytest.raises(BrokenShareGroup, match="no member has processed it"):
        story.end({0: 200})
    # This is about the former record 1, whose place is free.
    story.deliver(1, first_value=200)
    story.accept(0, 1)
    story.end({0: 200, 1: 201})
    with pytest.raises(BrokenShareGroup, match="although it was acknowledged"):
        story.deliver(0, first_value=200)
