"""Where a follower truncates: the cases of KIP-101 and KIP-279."""

import pytest

from kbroker.replica.fetcher.truncation import truncation_offset
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache


@pytest.mark.parametrize(
    ("own_epochs", "log_end_offset", "diverging", "expected"),
    [
        pytest.param([(0, 0)], 10, (0, 7), 7, id="the leader's log of the same epoch is shorter"),
        pytest.param([(0, 0), (1, 7)], 10, (0, 9), 7, id="the leader has more of the epoch before the diverging one"),
        pytest.param([(0, 0), (2, 5)], 10, (1, 8), 5, id="the leader's epoch is unknown here"),
        pytest.param([(0, 0), (3, 5), (4, 8)], 10, (3, 7), 7, id="several epochs are removed"),
        pytest.param([(3, 5)], 10, (1, 2), 2, id="the leader's epoch is older than all of this log"),
        pytest.param([(3, 5)], 10, (4, 20), 10, id="the leader's epoch is newer than all of this log"),
        pytest.param([], 10, (4, 6), 6, id="no epoch is known"),
        pytest.param([(4, 0), (5, 10)], 10, (4, 20), 10, id="an epoch that began here without a record"),
    ],
)
def test_truncation_offset(
    own_epochs: list[tuple[int, int]], log_end_offset: int, diverging: tuple[int, int], expected: int
) -> None:
    assert truncation_offset(LeaderEpochCache(own_epochs), log_end_offset, diverging) == expected
