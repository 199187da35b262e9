import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import ClassicGroupMember
from kbroker.coordinator.group.classic.group_state import ENTERED_FROM, GroupState
from protocol.errors import ErrorCode


def member(member_id: str, *names: str, instance_id: str | None = None) -> ClassicGroupMember:
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
    for one in members:
        group.add(one)
    return group


def test_states_follow_the_table() -> None:
    for state in GroupState:
        for target in GroupState:
            group = ClassicGroup("g")
            group.state = state
            if state in ENTERED_FROM[target]:
                group.enter(target)
                assert group.state is target
            else:
                with pytest.raises(AssertionError):
                    group.enter(target)


@pytest.mark.parametrize(
    ("preferences", "chosen"),
    [
        (["a b"], "a"),
        (["a b", "b a", "b a"], "b"),
        # only what all support
        (["a b", "b", "a b"], "b"),
        # a draw: the earliest member decides
        (["b a", "a b"], "b"),
    ],
)
def test_members_vote_for_a_protocol(preferences: list[str], chosen: str) -> None:
    group = group_of(*[member(str(i), *text.split()) for i, text in enumerate(preferences)])
    assert group.choose_protocol() == chosen


def test_what_a_joining_member_must_support() -> None:
    group = group_of(member("1", "a", "b"), member("2", "b", "c"))
    assert group.supports("consumer", ["x"])
    group.state = GroupState.STABLE
    assert group.supports("consumer", ["b", "x"])
    assert not group.supports("consumer", ["a", "c"])
    assert not group.supports("connect", ["b"])
    group.remove("1")
    assert group.supports("consumer", ["c"])


def test_the_next_member_leads_when_the_leader_goes() -> None:
    group = group_of(member("1", "a"), member("2", "a"), member("3", "a"))
    assert group.leader == "1"
    group.remove("1")
    assert group.leader == "2"
    group.remove("3")
    group.remove("2")
    assert group.leader is None


def test_a_static_member_is_replaced_in_its_place() -> None:
    group = group_of(member("1", "a", instance_id="i"), member("2", "a"))
    group.replace("1", group.members["1"].renamed("9"))
    assert list(group.members) == ["9", "2"]
    assert group.leader == "9"
    assert group.static == {"i": "9"}


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
def test_members_are_known_by_both_ids(member_id: str, instance_id: str | None, error: ErrorCode | None) -> None:
    group = group_of(member("1", "a", instance_id="i"), member("2", "a"))
    if error is None:
        assert group.check_member(member_id, instance_id).member_id == member_id
    else:
        with pytest.raises(KafkaError) as refused:
            group.check_member(member_id, instance_id)
        assert refused.value.code is error


def test_protocols_of_members_that_are_gone_are_forgotten() -> None:
    group = group_of(member("1", "a"))
    for i in range(100):
        group.add(member("2", "a", f"b{i}"))
        group.remove("2")
    assert group.choose_protocol() == "a"
    assert len(group._supporters) == 1
