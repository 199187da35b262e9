"""scripts/bench --moves: its assignments, its table, and a move between brokers of kbroker."""

from pathlib import Path

import pytest

from scripts.benchmark.cluster.admin import MoveAdmin
from scripts.benchmark.cluster.clusters import KbrokerCluster
from scripts.benchmark.cluster.moves import (
    PARTITIONS,
    Row,
    after_move,
    before_move,
    lines_of,
    move_unthrottled,
    rows,
)


def test_each_follower_moves_to_the_broker_without_a_replica() -> None:
    for before, after in zip(before_move(PARTITIONS), after_move(PARTITIONS), strict=True):
        assert before[0] == after[0], "the leader stays"
        assert {*before, *after} == {1, 2, 3}


@pytest.mark.parametrize("assignments", [before_move(PARTITIONS), after_move(PARTITIONS)])
def test_each_broker_has_as_many_leaders_and_followers(assignments: list[list[int]]) -> None:
    for position in (0, 1):
        held = [brokers[position] for brokers in assignments]
        assert [held.count(node_id) for node_id in (1, 2, 3)] == [PARTITIONS // 3] * 3


def test_lines_have_medians_ratios_and_bounds() -> None:
    table = [Row("move 2 GB, s", "s", "≤ 1.00"), Row("memory", "MiB")]
    ours, theirs = [{"s": 6.0, "MiB": 161.0}, {"s": 4.0, "MiB": 161.0}], [{"s": 10.0, "MiB": 322.0}]
    assert lines_of(table, ours, theirs) == [
        "| move 2 GB, s | 5 | 10 | **0.50** | ≤ 1.00 |",
        "| memory | 161 | 322 | **0.50** |  |",
    ]
    assert lines_of(table[1:], ours, []) == ["| memory | 161 |  |  |  |"]


def test_the_table_has_a_line_for_each_row() -> None:
    table = rows("2 GB", "20 MB/s", 2000)
    figures = dict.fromkeys((row.figure for row in table), 1.0)
    lines = lines_of(table, [figures], [figures])
    assert len(lines) == len(table) == len(figures)
    assert "| move 2 GB, s | 1 | 1 | **1.00** | ≤ 1.00 |" in lines
    assert any("| produce at 2,000 records/s, p99 during a move at 20 MB/s / alone | 1 |" in line for line in lines)


def test_replicas_move_between_brokers(tmp_path: Path) -> None:
    cluster = KbrokerCluster(tmp_path)
    cluster.start()
    try:
        admin = MoveAdmin(cluster)
        admin.wait_for_brokers()
        topic = admin.new_topic(before_move(PARTITIONS))
        admin.throttle(topic, 1 << 20)
        figures = move_unthrottled(cluster, admin, topic)
        assert figures["move s"] > 0
        assert figures["move MiB"] > 0
        admin.remove_throttle(topic)
        assert admin.has_replicas(topic, after_move(PARTITIONS))
        assert not admin.has_replicas(topic, before_move(PARTITIONS))
        with pytest.raises(SystemExit, match="the move of partition 0"):
            admin.move(topic, [[1, 9]] * PARTITIONS, lambda: None)
        admin.close()
    finally:
        cluster.kill()
