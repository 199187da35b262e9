"""A few kills. `python -m tests.compat.cluster.groups` has more: docs/development/testing.md."""

import math

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.groups.kills import run_kills
from tests.compat.cluster.groups.ledger import Ledger
from tests.compat.reports import reports

SEED, KILLS = 318, 5


@pytest.mark.skipif(not IS_KBROKER, reason="not run: settings of another program")
def test_groups_go_on_when_coordinators_leaders_and_members_are_killed(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    run_kills(cluster, SEED, KILLS, math.inf, reports(request.config).section("kills under groups").append)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["fatal x"], "given up"),
        (["read 0 1 5", "acking 0 1", "acked 0 1 7", "read 0 1 8"], "again after their acknowledgement: 1, first"),
        (["read 0 1 8", "acked 0 1 7"], "again after"),
        (["read 0 1 5", "acked 0 1 7", "acked 0 1 9"], "twice"),
        (["read 0 1 5", "read 0 1 6", "refused 0 1 error x", "acked 0 1 7", "assigned 0"], ""),
    ],
)
def test_the_ledger_finds_what_must_not_happen(lines: list[str], error: str) -> None:
    ledger = Ledger("g")
    for line in lines:
        ledger.add(line)
    if error:
        with pytest.raises(AssertionError, match=error):
            ledger.check()
    else:
        ledger.check()


def test_the_ledger_finds_what_is_missing() -> None:
    ledger = Ledger("g")
    for line in ("read 0 0 1", "read 0 1 1", "acking 0 0"):
        ledger.add(line)
    assert (ledger.missing([2, 1], is_share=False), ledger.repeated) == ({(1, 0)}, 0)
    assert ledger.missing([2, 0], is_share=True) == {(0, 1)}
