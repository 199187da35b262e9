"""The lag table and the members of groups."""

from kbroker.cli.groups.app import lag_table, member_summary

A, B = ("t", 0), ("t", 1)


def test_lag_is_none_if_either_offset_is_unknown() -> None:
    owner = {"member_id": "m", "client_id": "c", "host": "h"}
    deleted, overrun = ("gone", 0), ("t", 2)
    rows = lag_table({A: 40, deleted: 7, overrun: 9}, {A: 100, B: 5, overrun: 8}, {A: owner, B: owner})
    assert [(r["topic"], r["partition"], r["committed"], r["end"], r["lag"], r["client_id"]) for r in rows] == [
        ("gone", 0, 7, None, None, None),
        ("t", 0, 40, 100, 60, "c"),
        ("t", 1, None, 5, None, "c"),
        ("t", 2, 9, 8, 0, None),
    ]


def test_a_member_whose_assignment_cannot_be_decoded_has_none() -> None:
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
