"""Plans of `groups reset-offsets`, and the lag table."""

import pytest

from kbroker.cli.errors import CliError
from kbroker.cli.groups import lag_table, member_summary
from kbroker.cli.reset import Move, Target, plan_reset

A, B = ("t", 0), ("t", 1)
FIRST = {A: 10, B: 0}
END = {A: 100, B: 5}
COMMITTED = {A: 40}


def new_offsets(target: Target, at_time: dict[tuple[str, int], int] | None = None) -> list[int]:
    return [move.new for move in plan_reset([A, B], target, COMMITTED, FIRST, END, at_time or {})]


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


def test_a_time_that_no_record_has_reached_is_the_end() -> None:
    assert new_offsets(Target("time", 99), {A: 77, B: -1}) == [77, 5]


@pytest.mark.parametrize(("number", "expected"), [(5, 45), (-5, 35), (-1000, 10), (1000, 100)])
def test_a_shift_counts_from_what_is_committed(number: int, expected: int) -> None:
    plan = plan_reset([A], Target("shift", number), COMMITTED, FIRST, END, {})
    assert plan == [Move("t", 0, 40, expected)]


def test_nothing_committed_cannot_be_shifted() -> None:
    with pytest.raises(CliError, match="cannot shift t-1"):
        new_offsets(Target("shift", 1))


def test_lag_is_unknown_where_one_side_is() -> None:
    owner = {"member_id": "m", "client_id": "c", "host": "h"}
    deleted, overrun = ("gone", 0), ("t", 2)
    rows = lag_table({A: 40, deleted: 7, overrun: 9}, {A: 100, B: 5, overrun: 8}, {A: owner, B: owner})
    assert [(r["topic"], r["partition"], r["committed"], r["end"], r["lag"], r["client_id"]) for r in rows] == [
        ("gone", 0, 7, None, None, None),
        ("t", 0, 40, 100, 60, "c"),
        ("t", 1, None, 5, None, "c"),
        ("t", 2, 9, 8, 0, None),
    ]


def test_a_member_whose_assignment_cannot_be_read_has_none() -> None:
    member = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "c",
        "client_host": "/127.0.0.1",
        "member_assignment": b"\x00",
    }
    assert member_summary(member)["assignment"] == {}
    assigned = {"assigned_partitions": [{"topic": "t", "partitions": [2, 0]}]}
    summary = member_summary(member | {"member_assignment": assigned})
    assert summary["assignment"] == {"t": [0, 2]}
    assert summary["host"] == "127.0.0.1"
