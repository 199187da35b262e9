"""The transitions of a classic group, and what remains of members. The transcripts of Kafka have the rest."""

import pytest

from kbroker.coordinator.group.classic.classic_group import VALID_PREVIOUS_STATES, ClassicGroup, GroupState
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember


def new_member(member_id: str, *names: str, instance_id: str | None = None) -> ClassicGroupMember:
    return ClassicGroupMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=3000,
        session_timeout_ms=1000,
        protocols=tuple((name, name.encode()) for name in names),
    )


def group_of(*members: ClassicGroupMember) -> ClassicGroup:
    group = ClassicGroup("g")
    group.protocol_type = "consumer"
    for member in members:
        group.add_member(member)
    return group


def test_only_the_transitions_of_the_table_are_possible() -> None:
    for state in GroupState:
        for target in GroupState:
            group = ClassicGroup("g")
            group.state = state
            if state in VALID_PREVIOUS_STATES[target]:
                group.transition_to(target)
                assert group.state is target
            else:
                with pytest.raises(AssertionError):
                    group.transition_to(target)


def test_no_protocols_remain_of_removed_members() -> None:
    group = group_of(new_member("1", "a"))
    for i in range(100):
        group.add_member(new_member("2", "a", f"b{i}"))
        group.remove_member("2")
    assert group.select_protocol() == "a"
    assert len(group._supported_protocols) == 1
