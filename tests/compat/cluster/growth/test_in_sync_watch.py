"""The watch of in-sync replicas notices every replica that is missing, and excuses only brokers that were killed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.ensemble import NoEnsemble
from tests.compat.cluster.growth.in_sync_watch import Expected, InSyncWatch, wrong_state
from tests.compat.cluster.views import PartitionView

MOVE = Expected(frozenset({1, 2, 3}), frozenset({3, 4, 5}))


@pytest.mark.parametrize(
    ("replicas", "isr", "killed", "is_wrong"),
    [
        ((1, 2, 3), {1, 2, 3}, set(), False),
        ((1, 2, 3), {1, 3}, set(), True),
        ((1, 2, 3), {1, 3}, {2}, False),
        ((1, 2, 3), {1}, {2}, True),
        # While it moves.
        ((3, 4, 5, 1, 2), {1, 2, 3}, set(), False),
        ((3, 4, 5, 1, 2), {1, 2, 4}, set(), False),
        ((3, 4, 5, 1, 2), {1, 4}, set(), True),
        ((3, 4, 5, 1, 2), {2, 3}, {1}, False),
        # A replica that is added has not been in sync before.
        ((3, 4, 5, 1, 2), {2, 3}, {4}, True),
        # It has moved.
        ((3, 4, 5), {3, 4, 5}, set(), False),
        ((3, 4, 5), {4, 5}, {3}, False),
        ((3, 4, 5), {3, 4}, {5}, False),
        ((3, 4, 5), {4, 5}, {1}, True),
        ((3, 4, 1), {1, 3, 4}, set(), True),
    ],
)
def test_states_of_a_partition(replicas: tuple[int, ...], isr: set[int], killed: set[int], is_wrong: bool) -> None:
    assert bool(wrong_state(MOVE, PartitionView(replicas[0], replicas, frozenset(isr)), killed)) == is_wrong


def test_what_brokers_have_logged(tmp_path: Path) -> None:
    watch = InSyncWatch(Cluster(tmp_path, NoEnsemble()))
    early = datetime.now(UTC) - timedelta(seconds=5)
    watch.before_kill(2)
    watch.before_stop(3)
    during = datetime.now(UTC)

    def wrong(time: datetime, line: str) -> bool:
        text = time.strftime("%Y-%m-%dT%H:%M:%S.%f+0000")
        return list(watch.logged_violations({1: f"{text} INFO    {line}\n"})) != []

    shrink = 'kbroker.isr: ISR changed partition=t-0 isr="[{}]" added=[] removed=[2]'
    assert wrong(early, shrink.format("1, 3"))
    assert not wrong(during, shrink.format("1, 3"))
    assert wrong(during, shrink.format("1"))
    assert not wrong(early, shrink.format("1, 3, 4"))
    fenced = "kbroker.metadata: broker fenced broker="
    assert [wrong(early, f"{fenced}{broker}") for broker in (2, 3, 4)] == [True, True, True]
    assert [wrong(during, f"{fenced}{broker}") for broker in (2, 3, 4)] == [False, False, True]
    watch.in_sync_again()
    assert wrong(datetime.now(UTC) + timedelta(seconds=5), f"{fenced}2")
