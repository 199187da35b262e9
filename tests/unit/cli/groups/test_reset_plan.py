"""Plans of `groups reset-offsets`, and their files."""

import pytest

from kbroker.cli.common.errors import CliError
from kbroker.cli.groups.reset_plan import Line, Move, Target, plan_reset, read_plan, write_plan

A, B = ("t", 0), ("t", 1)
FIRST = {A: 10, B: 0}
END = {A: 100, B: 5}
COMMITTED = {A: 40}


def planned(target: Target, found: dict[tuple[str, int], int] | None = None) -> list[Move]:
    return plan_reset([A, B], target, COMMITTED, FIRST, END, found or {})


def new_offsets(target: Target, found: dict[tuple[str, int], int] | None = None) -> list[int]:
    return [move.new for move in planned(target, found)]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target("earliest"), [10, 0]),
        (Target("latest"), [100, 5]),
        (Target("offset", 3), [10, 3]),
        (Target("offset", 300), [100, 5]),
        # where nothing is committed, "current" is the end, as with Kafka's tool
        (Target("current"), [40, 5]),
    ],
)
def test_new_offsets_stay_within_the_log(target: Target, expected: list[int]) -> None:
    assert new_offsets(target) == expected


def test_what_does_not_go_where_it_was_told_says_why() -> None:
    assert [move.note for move in planned(Target("offset", 7))] == [
        "7 is lower than the log's start, 10",
        "7 is higher than the log's end, 5",
    ]
    assert [move.note for move in planned(Target("offset", 5))] == ["5 is lower than the log's start, 10", None]
    assert planned(Target("current"))[1].note == "nothing is committed: the end"


def test_a_time_that_no_record_has_reached_is_the_end() -> None:
    plan = planned(Target("time", 99), {A: 77, B: -1})
    assert [move.new for move in plan] == [77, 5]
    assert [move.note for move in plan] == [None, "no record at or after that time: the end"]


def test_current_stays_what_it_is_even_outside_the_log() -> None:
    assert plan_reset([A], Target("current"), {A: 5}, FIRST, END, {}) == [Move("t", 0, 5, 5)]


@pytest.mark.parametrize(("number", "expected"), [(5, 45), (-5, 35), (-1000, 10), (1000, 100)])
def test_a_shift_counts_from_what_is_committed(number: int, expected: int) -> None:
    [move] = plan_reset([A], Target("shift", number), COMMITTED, FIRST, END, {})
    assert (move.old, move.new) == (40, expected)
    assert (move.note is None) == (abs(number) < 1000)


def test_nothing_committed_cannot_be_shifted() -> None:
    with pytest.raises(CliError, match="cannot shift t-1"):
        new_offsets(Target("shift", 1))


def test_offsets_of_a_file_stay_within_the_log() -> None:
    assert new_offsets(Target("file"), {A: 50, B: 6}) == [50, 5]


def test_a_plan_is_read_back_as_it_was_written() -> None:
    plans = [("g", planned(Target("latest"))), ("other, group", planned(Target("earliest"))[:1])]
    assert write_plan(plans[:1], with_groups=False) == "t,0,100\nt,1,5\n"
    text = write_plan(plans, with_groups=True)
    assert text == 'g,t,0,100\ng,t,1,5\n"other, group",t,0,10\n'
    assert read_plan(text, "f") == [
        Line("g", "t", 0, 100),
        Line("g", "t", 1, 5),
        Line("other, group", "t", 0, 10),
    ]


def test_a_plan_that_kafkas_tool_exported_is_read() -> None:
    # it quotes names of more than 24 characters, and ends with an empty line
    assert read_plan('"a-name-of-more-than-24-characters",0,7\nshort,1,0\n\n', "f") == [
        Line(None, "a-name-of-more-than-24-characters", 0, 7),
        Line(None, "short", 1, 0),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("t,zero,1\n", "f, line 1: expected"),
        ("t,0,1\nt,0,-1\n", "f, line 2: expected"),
        ("t,0\n", "f, line 1: expected"),
        ("t,0,1\ng,t,0,1\n", "f, line 2: either all lines name their group or none does"),
        ("\n", "f has no offsets"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(CliError) as refused:
        read_plan(text, "f")
    assert reason in str(refused.value)
