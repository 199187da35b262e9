"""Leader epochs: assignment, end offsets, truncation."""

import pytest

from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache

END = 100


@pytest.fixture
def cache() -> LeaderEpochCache:
    """Epoch 2 has offsets 0-9, epoch 4 has 10-19, epoch 5 from 20 on."""
    return LeaderEpochCache([(2, 0), (4, 10), (5, 20)])


def test_an_epoch_is_entered_once(cache):
    cache.assign(5, 20)
    cache.assign(5, 35)
    assert cache.entries == [(2, 0), (4, 10), (5, 20)]
    cache.assign(6, 40)
    assert (cache.latest, cache.entries[-1]) == (6, (6, 40))


@pytest.mark.parametrize(
    ("epoch", "offset", "entries"),
    [
        (6, 20, [(2, 0), (4, 10), (6, 20)]),
        (6, 15, [(2, 0), (4, 10), (6, 15)]),
        (6, 10, [(2, 0), (6, 10)]),
        (3, 30, [(2, 0), (3, 30)]),
        (5, 12, [(2, 0), (4, 10), (5, 12)]),
        (1, 0, [(1, 0)]),
    ],
)
def test_entries_that_contradict_a_new_one_are_removed(cache, epoch, offset, entries):
    cache.assign(epoch, offset)
    assert cache.entries == entries


def test_negative_epochs_and_offsets_are_rejected(cache):
    for epoch, offset in ((-1, 5), (7, -1)):
        with pytest.raises(ValueError, match="leader epoch"):
            cache.assign(epoch, offset)


@pytest.mark.parametrize(
    ("epoch", "response"),
    [(-1, (-1, -1)), (0, (0, 0)), (1, (1, 0)), (2, (2, 10)), (3, (2, 10)), (4, (4, 20)), (5, (5, END)), (6, (-1, -1))],
)
def test_end_offsets(cache, epoch, response):
    assert cache.end_offset_for(epoch, END) == response


def test_end_offsets_of_an_empty_cache():
    assert LeaderEpochCache().end_offset_for(0, END) == (-1, -1)
    assert LeaderEpochCache().latest == -1


@pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (9, 2), (10, 4), (19, 4), (20, 5), (1000, 5), (-1, -1)])
def test_the_epoch_of_an_offset(cache, offset, epoch):
    assert cache.epoch_for(offset) == epoch


def test_truncation_from_the_end(cache):
    cache.truncate_from_end(21)
    assert cache.latest == 5
    cache.truncate_from_end(20)
    assert cache.entries == [(2, 0), (4, 10)]
    cache.truncate_from_end(0)
    assert cache.entries == []
    cache.assign(5, 0)
    assert cache.entries == [(5, 0)]


def test_truncation_from_the_start(cache):
    cache.truncate_from_start(9)
    assert cache.entries == [(2, 9), (4, 10), (5, 20)]
    cache.truncate_from_start(10)
    assert cache.entries == [(4, 10), (5, 20)]
    cache.truncate_from_start(50)
    assert cache.entries == [(5, 50)]
    cache.truncate_from_start(20)
    assert cache.entries == [(5, 50)]
    assert cache.epoch_for(49) == -1


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
    """The cases of KIP-101 and KIP-279."""
    assert LeaderEpochCache(own_epochs).truncation_offset(log_end_offset, diverging) == expected
