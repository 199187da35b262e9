"""Leader elections, and the next state of a partition, as tables."""

import pytest

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_change import Election, change_partition, elect_leader

ONLINE, PREFERRED, UNCLEAN = Election.ONLINE, Election.PREFERRED, Election.UNCLEAN


def partition(leader: int, isr: list[int], replicas: list[int] | None = None) -> PartitionRegistration:
    return PartitionRegistration(leader, 5, replicas or [1, 2, 3], isr, partition_epoch=9)


@pytest.mark.parametrize(
    ("leader", "isr", "online", "election", "expected"),
    [
        # The current leader stays if it can.
        (2, [1, 2, 3], {1, 2, 3}, ONLINE, (2, False)),
        (2, [1, 2, 3], {1, 2, 3}, UNCLEAN, (2, False)),
        # Otherwise the first replica in sync is elected, in the order of the replicas.
        (2, [3, 1], {1, 2, 3}, ONLINE, (1, False)),
        (2, [2, 3], {1, 3}, ONLINE, (3, False)),
        (-1, [3], {1, 2, 3}, ONLINE, (3, False)),
        # The preferred leader is the first replica; if it is not in sync, the current leader stays.
        (2, [1, 2, 3], {1, 2, 3}, PREFERRED, (1, False)),
        (3, [2, 3], {1, 2, 3}, PREFERRED, (3, False)),
        (3, [1, 2, 3], {2, 3}, PREFERRED, (3, False)),
        # No replica in sync is online.
        (1, [1], {2, 3}, ONLINE, (-1, False)),
        (1, [1], {2, 3}, PREFERRED, (-1, False)),
        (1, [1], {2, 3}, UNCLEAN, (2, True)),
        (1, [1], set(), UNCLEAN, (-1, False)),
    ],
)
def test_elections(
    leader: int, isr: list[int], online: set[int], election: Election, expected: tuple[int, bool]
) -> None:
    assert elect_leader(partition(leader, isr), isr, election, online.__contains__) == expected


def test_nothing_changes() -> None:
    assert change_partition(partition(1, [1, 2]), {1, 2}.__contains__) is None
    assert change_partition(partition(1, [1, 2]), {1, 2}.__contains__, isr=[1, 2]) is None


def test_another_isr_keeps_the_leader_epoch() -> None:
    changed = change_partition(partition(1, [1, 2]), {1, 2, 3}.__contains__, isr=[1, 2, 3])
    assert changed == PartitionRegistration(1, 5, [1, 2, 3], [1, 2, 3], partition_epoch=10)


def test_another_leader_begins_a_leader_epoch() -> None:
    changed = change_partition(partition(1, [1, 2]), {2, 3}.__contains__, isr=[2])
    assert changed == PartitionRegistration(2, 6, [1, 2, 3], [2], partition_epoch=10)


def test_the_last_in_sync_replica_stays_without_a_leader() -> None:
    changed = change_partition(partition(1, [1]), {2, 3}.__contains__, isr=[])
    assert changed == PartitionRegistration(-1, 6, [1, 2, 3], [1], partition_epoch=10)


def test_an_unclean_leader_is_alone_in_sync() -> None:
    changed = change_partition(partition(-1, [1]), {3}.__contains__, election=UNCLEAN)
    assert changed == PartitionRegistration(3, 6, [1, 2, 3], [3], partition_epoch=10)


def test_a_leader_that_restarted_begins_a_leader_epoch() -> None:
    changed = change_partition(partition(1, [1]), {1}.__contains__, restarted=[1])
    assert changed == PartitionRegistration(1, 6, [1, 2, 3], [1], partition_epoch=10)
    assert change_partition(partition(1, [1]), {1, 2}.__contains__, restarted=[2]) is None
