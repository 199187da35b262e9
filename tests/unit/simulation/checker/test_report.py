"""Reports show anomalies with the surrounding history."""

import pytest

from kbroker.simulation.checker import check, render
from tests.unit.simulation.checker.history_notation import history


def report(steps: str, around: int | None = None) -> list[str]:
    recorded = history(steps)
    anomalies = check(recorded, durable=False)
    return (render(recorded, anomalies) if around is None else render(recorded, anomalies, around)).splitlines()


def words(values: range) -> str:
    return " ".join(map(str, values))


def test_a_lost_write() -> None:
    assert report("send 1 @0; send q 100 101 @0 by elsewhere; note kill -9; send 2 @1; final 1 -")[:8] == [
        "LOST WRITE: 2 of t-0 was acknowledged at offset 1 and is missing at the end.",
        "       0       0.001000       0.002000 producer     send t-0 #0 [1] -> 0 ok",
        "         ...",
        "       2       0.005000       0.006000 nemesis      kill -9",
        ">      3       0.007000       0.008000 producer     send t-0 #1 [2] -> 1 ok",
        "       4       0.009000       0.010000 final        assign (assign) t-0@0 ok",
        "       5       0.011000       0.012000 final        poll t-0@0=1 now at t-0@2 ok",
        "",
    ]


def test_long_lists_are_cut() -> None:
    values = words(range(1_000))
    shown = report(f"send {values} @0; send 5000 @500 by another; final {values}")
    assert any("INCONSISTENT OFFSETS: t-0 has had the values 500, 5000 at offset 500" in line for line in shown)
    assert max(map(len, shown)) < 500
    assert any("999] -> 0 ok" in line for line in shown)


def test_the_number_of_anomalies_per_kind_is_limited() -> None:
    shown = "\n".join(report(f"sends {words(range(20))}; final {'- ' * 20}", around=2))
    assert shown.count("was acknowledged at offset") == 5
    assert "LOST WRITE: 15 more." in shown


@pytest.mark.parametrize(("around", "sends"), [(0, 2), (4, 6)])
def test_the_number_of_surrounding_operations(around: int, sends: int) -> None:
    shown = report(f"sends {words(range(50))}; send 50 @0 by another", around)
    assert sum(" send " in line for line in shown) == sends


def test_a_report_without_anomalies() -> None:
    assert render(history(""), []) == ""
