import pytest

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.offsets.group_offsets import GroupOffsets, expired
from kbroker.coordinator.group.records import OffsetAndMetadata

RETENTION_MS = 1000


def offsets_of(**committed: OffsetAndMetadata) -> GroupOffsets:
    offsets = GroupOffsets()
    for topic, offset in committed.items():
        offsets.put(topic, 0, offset)
    return offsets


@pytest.mark.parametrize(
    ("protocol_type", "state", "subscribed", "gone"),
    [
        # a simple group: each offset by its own commit
        (None, GroupState.EMPTY, None, {"old"}),
        # an empty group: all together, from when it became empty (at 500)
        ("consumer", GroupState.EMPTY, frozenset(), set()),
        # members: what nobody subscribes to
        ("consumer", GroupState.STABLE, frozenset({"new"}), {"old"}),
        ("consumer", GroupState.STABLE, frozenset({"old", "new"}), set()),
        # a subscription that cannot be read, other protocols, a rebalance: nothing
        ("consumer", GroupState.STABLE, None, set()),
        ("connect", GroupState.STABLE, None, set()),
        ("consumer", GroupState.PREPARING_REBALANCE, frozenset(), set()),
    ],
)
def test_which_offsets_expire(
    protocol_type: str | None, state: GroupState, subscribed: frozenset[str] | None, gone: set[str]
) -> None:
    group = ClassicGroup("g")
    group.protocol_type, group.state, group.subscribed = protocol_type, state, subscribed
    group.state_timestamp_ms = 500
    offsets = offsets_of(old=OffsetAndMetadata(1, commit_ms=100), new=OffsetAndMetadata(1, commit_ms=900))
    assert {topic for topic, _ in expired(group, offsets, RETENTION_MS, 1100)} == gone


def test_an_empty_group_keeps_offsets_for_the_retention() -> None:
    group = ClassicGroup("g")
    group.protocol_type, group.state_timestamp_ms, group.subscribed = "consumer", 500, frozenset()
    offsets = offsets_of(old=OffsetAndMetadata(1, commit_ms=100))
    assert not expired(group, offsets, RETENTION_MS, 1499)
    assert expired(group, offsets, RETENTION_MS, 1500) == [("old", 0)]
    # A record of an old broker does not say since when the group is empty.
    group.state_timestamp_ms = -1
    assert expired(group, offsets, RETENTION_MS, 1100) == [("old", 0)]


def test_a_commit_may_bring_its_own_retention() -> None:
    group = ClassicGroup("g")
    offsets = offsets_of(
        short=OffsetAndMetadata(1, commit_ms=900, expire_ms=950), long=OffsetAndMetadata(1, commit_ms=0, expire_ms=5000)
    )
    assert expired(group, offsets, RETENTION_MS, 2000) == [("short", 0)]


def test_offsets_come_and_go() -> None:
    offsets = offsets_of(t=OffsetAndMetadata(5))
    assert offsets.get("t", 0) == OffsetAndMetadata(5)
    assert offsets.get("t", 1) is None
    assert offsets.get("u", 0) is None
    offsets.remove("t", 1)
    offsets.remove("u", 0)
    assert list(offsets) == [("t", 0, OffsetAndMetadata(5))]
    offsets.remove("t", 0)
    assert not offsets
