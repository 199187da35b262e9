"""Reports show anomalies with the surrounding history."""

from kbroker.simulation.checker import render
from kbroker.simulation.checker.history import Note
from tests.unit.simulation.checker.history_builder import HistoryBuilder, Q


def test_a_lost_write():
    builder = HistoryBuilder()
    builder.send(1, at=0)
    builder.send(100, 101, at=0, tp=Q, by="elsewhere")
    builder.do("nemesis", Note("kill -9"))
    builder.send(2, at=1)
    builder.ends_with(1, None)
    assert render(builder.history, builder.anomalies()).splitlines()[:8] == [
        "LOST WRITE: 2 of t-0 was acknowledged at offset 1 and is missing at the end.",
        "       0       0.001000       0.002000 producer     send t-0 #0 [1] -> 0 ok",
        "         ...",
        "       2       0.005000       0.006000 nemesis      kill -9",
        ">      3       0.007000       0.008000 producer     send t-0 #1 [2] -> 1 ok",
        "       4       0.009000       0.010000 final        assign (assign) t-0@0 ok",
        "       5       0.011000       0.012000 final        poll t-0@0=1 now at t-0@2 ok",
        "",
    ]


def test_long_lists_are_cut():
    builder = HistoryBuilder()
    values = range(1_000)
    builder.send(*values, at=0)
    builder.send(5_000, at=500, by="another")
    builder.ends_with(*values)
    shown = render(builder.history, builder.anomalies())
    assert "INCONSISTENT OFFSETS: t-0 has had the values 500, 5000 at offset 500" in shown
    assert max(map(len, shown.splitlines())) < 500
    assert "999] -> 0 ok" in shown


def test_the_number_of_anomalies_per_kind_is_limited():
    builder = HistoryBuilder()
    for value in range(20):
        builder.send(value, at=value)
    builder.ends_with(*[None] * 20)
    shown = render(builder.history, builder.anomalies(), around=2)
    assert shown.count("was acknowledged at offset") == 5
    assert "LOST WRITE: 15 more." in shown


def test_the_number_of_surrounding_operations():
    for around in (0, 4):
        builder = HistoryBuilder()
        for value in range(50):
            builder.send(value, at=value)
        builder.send(50, at=0, by="another")
        shown = render(builder.history, builder.anomalies(), around).splitlines()
        assert sum(" send " in line for line in shown) == (2 if around == 0 else 6)


def test_a_report_without_anomalies():
    assert render(HistoryBuilder().history, []) == ""
