"""scripts/bench --groups: each case runs with few members, and its figures are rows."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest

from scripts.benchmark.frame import COMPARISON, running
from scripts.benchmark.groups.__main__ import (
    MOVES,
    PER_HEARTBEAT,
    PER_RECORD,
    PROCESSOR,
    RATE,
    SECONDS,
    Case,
    Figures,
    GroupServer,
    Moves,
    all_cases,
    classic,
    heartbeats,
    joining,
    many_classic_groups,
    many_groups,
    rolling_restart,
    rows_of,
    sharing,
)
from scripts.benchmark.groups.members import ConsumerMember
from scripts.benchmark.peers import Kbroker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupServer]:
    peer = Kbroker(tmp_path_factory.mktemp("bench"))
    with running(peer):
        server = GroupServer(peer)
        yield server
        server.connections.close()
        server.connection.close()


CASES: list[tuple[Callable[[GroupServer], Figures], set[str]]] = [
    (partial(joining, members=6, partitions=12), {SECONDS, PROCESSOR}),
    (partial(joining, members=6, partitions=12, assignor="range"), {SECONDS, PROCESSOR}),
    (partial(many_groups, groups=6, partitions=12), {SECONDS, PROCESSOR}),
    (partial(heartbeats, members=6, each=3), {PER_HEARTBEAT}),
    (partial(rolling_restart, members=3, partitions=12, static=False), {SECONDS, PROCESSOR, MOVES}),
    (partial(rolling_restart, members=3, partitions=12, static=True), {SECONDS, PROCESSOR, MOVES}),
    (partial(classic, members=6), {SECONDS, PROCESSOR}),
    (partial(many_classic_groups, groups=6), {SECONDS, PROCESSOR}),
    (partial(sharing, members=2, records=2000), {RATE, PER_RECORD}),
]


@pytest.mark.parametrize(("measure", "names"), CASES)
def test_each_case_runs(measure: Callable[[GroupServer], Figures], names: set[str], server: GroupServer) -> None:
    figures = measure(server)
    assert set(figures) == names
    assert figures.get(MOVES, 0) == 0
    row, *_ = rows_of(Case("case", measure), {"kbroker": [figures]})
    assert row.count("|") == COMPARISON.splitlines()[0].count("|")


def test_every_function_is_a_case() -> None:
    measured = {cast("partial[Figures]", case.measure).func for case in all_cases()}
    assert measured == {cast("partial[Figures]", measure).func for measure, _ in CASES}


def test_a_partition_that_returns_to_its_member_has_not_moved() -> None:
    first, second = ConsumerMember("g", "t"), ConsumerMember("g", "t")
    first.partitions, second.partitions = frozenset({0, 1}), frozenset({2})
    moves = Moves([first, second])
    moves.on_assigned(first, frozenset({0}))
    moves.on_assigned(second, frozenset({1}))
    moves.on_assigned(first, frozenset({1, 2}))
    assert moves.count == 3
