"""`kbroker groups`: the lag table, members, and plans of new offsets."""

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.groups.app import lag_table
from kbroker.cli.groups.reset_offsets import OffsetReset, PlanLine, ResetTarget, format_plan, parse_plan, plan_reset
from kbroker.client.group_descriptions import Assignment, GroupMember, classic_member
from protocol.messages.consumer_protocol import AssignedTopic, ConsumerProtocolAssignment
from protocol.messages.k15_groups import DescribedGroupMember
from protocol.schema.codec import encode

A, B = ("t", 0), ("t", 1)


def test_lag_is_none_if_either_offset_is_unknown() -> None:
    owner = GroupMember("m", None, "c", "h", None, {})
    deleted, overrun = ("gone", 0), ("t", 2)
    rows = lag_table({A: 40, deleted: 7, overrun: 9}, {A: 100, B: 5, overrun: 8}, {A: owner, B: owner})
    assert [
        (r["topic"], r["partition"], r["committed_offset"], r["latest_offset"], r["lag"], r["client_id"]) for r in rows
    ] == [
        ("gone", 0, 7, None, None, None),
        ("t", 0, 40, 100, 60, "c"),
        ("t", 1, None, 5, None, "c"),
        ("t", 2, 9, 8, 0, None),
    ]


def test_a_member_whose_assignment_cannot_be_decoded_has_none() -> None:
    def decoded(data: bytes) -> Assignment:
        found = classic_member(
            DescribedGroupMember(member_id="m", client_id="c", client_host="/127.0.0.1", member_assignment=data)
        )
        assert found.host == "127.0.0.1"
        return found.assignment

    assert decoded(b"") == decoded(b"\0") == decoded(b"\0\0\x7f") == decoded(b"\xff\xff" + bytes(8)) == {}
    assigned = ConsumerProtocolAssignment(assigned_partitions=[AssignedTopic(topic="t", partitions=[2, 0])])
    # A later version has further fields.
    for version in (0, 3, 7):
        assert decoded(version.to_bytes(2, "big") + encode(assigned, min(version, 3))) == {"t": [0, 2]}


LOG_START = {A: 10, B: 0}
LOG_END = {A: 100, B: 5}
COMMITTED = {A: 40}


def planned(target: ResetTarget, targets: dict[tuple[str, int], int] | None = None) -> list[OffsetReset]:
    return plan_reset([A, B], target, COMMITTED, LOG_START, LOG_END, targets or {})


def new_offsets(target: ResetTarget, targets: dict[tuple[str, int], int] | None = None) -> list[int]:
    return [reset.new for reset in planned(target, targets)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (ResetTarget("earliest"), [10, 0]),
        (ResetTarget("latest"), [100, 5]),
        (ResetTarget("offset", 3), [10, 3]),
        (ResetTarget("offset", 300), [100, 5]),
        # Without a committed offset, "current" is the log end offset, as in Kafka's tool.
        (ResetTarget("current"), [40, 5]),
    ],
)
def test_new_offsets_stay_within_the_log(target: ResetTarget, expected: list[int]) -> None:
    assert new_offsets(target) == expected


def test_clamped_offsets_have_a_note() -> None:
    assert [reset.note for reset in planned(ResetTarget("offset", 7))] == [
        "7 is before the log start offset 10",
        "7 is after the log end offset 5",
    ]
    assert [reset.note for reset in planned(ResetTarget("offset", 5))] == ["5 is before the log start offset 10", None]
    assert planned(ResetTarget("current"))[1].note == "nothing is committed, so the log end offset"


def test_a_time_after_all_records_is_the_log_end() -> None:
    plan = planned(ResetTarget("time", 99), {A: 77, B: -1})
    assert [reset.new for reset in plan] == [77, 5]
    assert [reset.note for reset in plan] == [None, "no record at or after that time, so the log end offset"]


def test_current_is_not_clamped_to_the_log() -> None:
    assert plan_reset([A], ResetTarget("current"), {A: 5}, LOG_START, LOG_END, {}) == [OffsetReset("t", 0, 5, 5)]


@pytest.mark.parametrize(("number", "expected"), [(5, 45), (-5, 35), (-1000, 10), (1000, 100)])
def test_a_shift_is_relative_to_the_committed_offset(number: int, expected: int) -> None:
    [reset] = plan_reset([A], ResetTarget("shift", number), COMMITTED, LOG_START, LOG_END, {})
    assert (reset.old, reset.new) == (40, expected)
    assert (reset.note is None) == (abs(number) < 1000)


def test_a_partition_without_committed_offset_cannot_be_shifted() -> None:
    with pytest.raises(CliError, match="cannot shift t-1"):
        new_offsets(ResetTarget("shift", 1))


def test_offsets_of_a_file_stay_within_the_log() -> None:
    assert new_offsets(ResetTarget("file"), {A: 50, B: 6}) == [50, 5]


def test_plan_file_round_trip() -> None:
    plans = [("g", planned(ResetTarget("latest"))), ("other, group", planned(ResetTarget("earliest"))[:1])]
    assert format_plan(plans[:1], with_groups=False) == "t,0,100\nt,1,5\n"
    text = format_plan(plans, with_groups=True)
    assert text == 'g,t,0,100\ng,t,1,5\n"other, group",t,0,10\n'
    assert parse_plan(text, "f") == [
        PlanLine("g", "t", 0, 100),
        PlanLine("g", "t", 1, 5),
        PlanLine("other, group", "t", 0, 10),
    ]


def test_a_plan_file_of_kafkas_tool_is_parsed() -> None:
    # Kafka's tool quotes names of more than 24 characters, and ends the file with an empty line.
    assert parse_plan('"a-name-of-more-than-24-characters",0,7\nshort,1,0\n\n', "f") == [
        PlanLine(None, "a-name-of-more-than-24-characters", 0, 7),
        PlanLine(None, "short", 1, 0),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,zero,1\n", "f, line 1: expected"),
        ("t,0,1\nt,0,-1\n", "f, line 2: expected"),
        ("t,0\n", "f, line 1: expected"),
        ("t,0,1\ng,t,0,1\n", "f, line 2: either all lines have a group or none has"),
        ("\n", "f has no offsets"),
    ],
)
def test_an_invalid_plan_file_is_rejected_with_the_line_number(text: str, reason: str) -> None:
    with pytest.raises(CliError) as error:
        parse_plan(text, "f")
    assert reason in str(error.value)
