"""The state of a classic group: transitions, protocols, leader, static members."""

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import VALID_PREVIOUS_STATES, ClassicGroup, GroupState
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember
from protocol.errors import ErrorCode


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


@pytest.mark.parametrize(
    ("preferences", "selected"),
    [
        (["a b"], "a"),
        (["a b", "b a", "b a"], "b"),
        # Only protocols that all members support.
        (["a b", "b", "a b"], "b"),
        # Of two with the same number of votes, the one of the earliest member.
        (["b a", "a b"], "b"),
    ],
)
def test_members_vote_for_a_protocol(preferences: list[str], selected: str) -> None:
    group = group_of(*[new_member(str(i), *text.split()) for i, text in enumerate(preferences)])
    assert group.select_protocol() == selected


def test_a_joining_member_must_support_a_protocol_of_all_members() -> None:
    group = group_of(new_member("1", "a", "b"), new_member("2", "b", "c"))
    assert group.supports_protocols("consumer", ["x"])
    group.state = GroupState.STABLE
    assert group.supports_protocols("consumer", ["b", "x"])
    assert not group.supports_protocols("consumer", ["a", "c"])
    assert not group.supports_protocols("connect", ["b"])
    group.remove_member("1")
    assert group.supports_protocols("consumer", ["c"])


def test_the_next_member_becomes_leader_when_the_leader_is_removed() -> None:
    group = group_of(new_member("1", "a"), new_member("2", "a"), new_member("3", "a"))
    assert group.leader_id == "1"
    group.remove_member("1")
    assert group.leader_id == "2"
    group.remove_member("3")
    group.remove_member("2")
    assert group.leader_id is None


def test_a_replaced_static_member_keeps_its_position_and_leadership() -> None:
    group = group_of(new_member("1", "a", instance_id="i"), new_member("2", "a"))
    group.replace_static_member("1", group.members["1"].with_member_id("9"))
    assert list(group.members) == ["9", "2"]
    assert group.leader_id == "9"
    assert group.static_members == {"i": "9"}


@pytest.mark.parametrize(
    ("member_id", "instance_id", "error"),
    [
        ("1", "i", None),
        ("1", None, None),
        ("2", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("1", "other", ErrorCode.UNKNOWN_MEMBER_ID),
        ("9", None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_are_validated_by_member_id_and_instance_id(
    member_id: str, instance_id: str | None, error: ErrorCode | None
) -> None:
    group = group_of(new_member("1", "a", instance_id="i"), new_member("2", "a"))
    if error is None:
        assert group.validate_member(member_id, instance_id).member_id == member_id
    else:
        with pytest.raises(KafkaError) as error_info:
            group.validate_member(member_id, instance_id)
        assert error_info.value.code is error


def test_no_protocols_remain_of_removed_members() -> None:
    group = group_of(new_member("1", "a"))
    for i in range(100):
        group.add_member(new_member("2", "a", f"b{i}"))
        group.remove_member("2")
    assert group.select_protocol() == "a"
    assert len(group._supported_protocols) == 1
