"""Committed offsets and offsets of open transactions: what counts after a transaction has ended, and what expires."""

from random import Random

import pytest

from kbroker.common import NO_PRODUCER_ID
from kbroker.coordinator.group.classic.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.group.offset_metadata_manager import OffsetMetadataManager, TopicOffsets, expired_offsets
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from tests.sampling import third_of

A, B = 1, 2
KEY = OffsetKey("g", "t", 0)


class Story:
    """Replays records whose committed offset is the offset of the record."""

    def __init__(self) -> None:
        self.manager = OffsetMetadataManager()

    def commit(self, record_offset: int, key: OffsetKey = KEY, producer_id: int = NO_PRODUCER_ID) -> None:
        record = OffsetRecord(key, OffsetAndMetadata(record_offset))
        self.manager.replay(record, record_offset, producer_id)

    def delete(self, record_offset: int, key: OffsetKey = KEY) -> None:
        self.manager.replay(OffsetRecord(key, None), record_offset, NO_PRODUCER_ID)

    def end(self, producer_id: int, *, committed: bool = True) -> None:
        self.manager.replay_end_transaction(producer_id, committed)

    def offsets(self) -> dict[OffsetKey, int]:
        return {
            OffsetKey(group_id, topic, partition): offset.offset
            for group_id, topics in self.manager.by_group.items()
            for topic, offsets in topics.items()
            for partition, offset in offsets.items()
        }

    def pending(self) -> set[OffsetKey]:
        pending = self.manager.pending
        return {OffsetKey(id, *partition) for id in pending.group_ids() for partition in pending.partitions(id)}


@pytest.fixture
def story() -> Story:
    return Story()


def test_groups_are_found_by_their_topics(story: Story) -> None:
    story.commit(5, OffsetKey("committed", "t", 0))
    story.commit(6, OffsetKey("pending", "t", 0), A)
    story.commit(7, OffsetKey("other", "u", 0))
    assert story.manager.groups_with_topics({"t", "v"}) == ["committed", "pending"]


class Model:
    """Apache Kafka's rule: each offset has its place in the log, and the end of a transaction compares the places."""

    def __init__(self) -> None:
        self.committed: dict[OffsetKey, int] = {}
        self.pending: dict[int, dict[OffsetKey, int]] = {}

    def commit(self, record_offset: int, key: OffsetKey, producer_id: int = NO_PRODUCER_ID) -> None:
        if producer_id == NO_PRODUCER_ID:
            self.committed[key] = record_offset
        else:
            self.pending.setdefault(producer_id, {})[key] = record_offset

    def delete(self, record_offset: int, key: OffsetKey) -> None:
        self.committed.pop(key, None)
        for offsets in self.pending.values():
            offsets.pop(key, None)

    def end(self, producer_id: int, *, committed: bool) -> None:
        for key, record_offset in self.pending.pop(producer_id, {}).items():
            if committed and record_offset > self.committed.get(key, -1):
                self.committed[key] = record_offset


@pytest.mark.parametrize("seed", third_of(range(30)))
def test_any_order_of_commits_and_ends_has_the_result_of_kafka(seed: int) -> None:
    random = Random(seed)
    story, model = Story(), Model()
    keys = [OffsetKey(group, "t", index) for group in "gh" for index in range(2)]
    for record_offset in range(400):
        key, producer_id = random.choice(keys), random.randrange(4)
        choice = random.random()
        committed = random.random() < 0.6
        for target in (story, model):
            if choice < 0.25:
                target.commit(record_offset, key)
            elif choice < 0.65:
                target.commit(record_offset, key, producer_id)
            elif choice < 0.75:
                target.delete(record_offset, key)
            else:
                target.end(producer_id, committed=committed)
        assert story.offsets() == model.committed
        pending = {key for offsets in model.pending.values() for key in offsets}
        assert (story.pending(), bool(story.manager.pending)) == (pending, bool(pending))
        assert set(story.manager.by_group) == {key.group_id for key in model.committed}
        for group in "gh":
            partitions = {(key.topic, key.partition) for key in {*pending, *model.committed} if key.group_id == group}
            assert set(story.manager.partitions(group)) == partitions


RETENTION_MS = 1000


def offsets_of(**committed: OffsetAndMetadata) -> TopicOffsets:
    """Return offsets of partition 0 of topics."""
    return {topic: {0: offset} for topic, offset in committed.items()}


@pytest.mark.parametrize(
    ("protocol_type", "state", "subscribed", "expired"),
    [
        # A simple group: each offset by its own commit.
        (None, GroupState.EMPTY, None, {"old"}),
        # An empty group: all together, since it became empty (at 500).
        ("consumer", GroupState.EMPTY, frozenset(), set()),
        # A group with members: topics without a subscriber.
        ("consumer", GroupState.STABLE, frozenset({"new"}), {"old"}),
        ("consumer", GroupState.STABLE, frozenset({"old", "new"}), set()),
        # Subscriptions that cannot be read, other protocol types, a rebalance: none.
        ("consumer", GroupState.STABLE, None, set()),
        ("connect", GroupState.STABLE, None, set()),
        ("consumer", GroupState.PREPARING_REBALANCE, frozenset(), set()),
    ],
)
def test_which_offsets_expire(
    protocol_type: str | None, state: GroupState, subscribed: frozenset[str] | None, expired: set[str]
) -> None:
    group = ClassicGroup("g")
    group.protocol_type, group.state, group.subscribed_topics = protocol_type, state, subscribed
    group.state_timestamp_ms = 500
    offsets = offsets_of(old=OffsetAndMetadata(1, commit_ms=100), new=OffsetAndMetadata(1, commit_ms=900))
    assert {topic for topic, _ in expired_offsets(group, offsets, RETENTION_MS, 1100)} == expired


def test_an_empty_group_keeps_its_offsets_for_the_retention() -> None:
    group = ClassicGroup("g")
    group.protocol_type, group.state_timestamp_ms, group.subscribed_topics = "consumer", 500, frozenset()
    offsets = offsets_of(old=OffsetAndMetadata(1, commit_ms=100))
    assert not expired_offsets(group, offsets, RETENTION_MS, 1499)
    assert expired_offsets(group, offsets, RETENTION_MS, 1500) == [("old", 0)]
    # The record of an old broker does not have the time when the group became empty.
    group.state_timestamp_ms = -1
    assert expired_offsets(group, offsets, RETENTION_MS, 1100) == [("old", 0)]


def test_a_commit_can_have_its_own_retention() -> None:
    group = ClassicGroup("g")
    offsets = offsets_of(
        short=OffsetAndMetadata(1, commit_ms=900, expire_ms=950), long=OffsetAndMetadata(1, commit_ms=0, expire_ms=5000)
    )
    assert expired_offsets(group, offsets, RETENTION_MS, 2000) == [("short", 0)]
