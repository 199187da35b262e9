"""Which committed offsets expire, and when."""

import pytest

from kbroker.coordinator.group.classic.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.group.offset_metadata_manager import TopicOffsets, expired_offsets
from kbroker.coordinator.group.records import OffsetAndMetadata

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
