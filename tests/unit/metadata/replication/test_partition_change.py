"""Leader elections, and the next state of a partition, as tables."""

from collections.abc import Collection

import pytest

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_change import Election, TopicRules, change_partition, elect_leader

ONLINE, PREFERRED, UNCLEAN = Election.ONLINE, Election.PREFERRED, Election.UNCLEAN


def partition(
    leader: int, isr: list[int], elr: Collection[int] = (), known: Collection[int] = ()
) -> PartitionRegistration:
    return PartitionRegistration(leader, 5, [1, 2, 3], isr, list(elr), list(known), partition_epoch=9)


@pytest.mark.parametrize(
    ("leader", "isr", "elr", "online", "election", "expected"),
    [
        # The current leader stays if it can.
        (2, [1, 2, 3], [], {1, 2, 3}, ONLINE, (2, False)),
        (2, [1, 2, 3], [], {1, 2, 3}, UNCLEAN, (2, False)),
        # Otherwise the first replica in sync is elected, in the order of the replicas.
        (2, [3, 1], [], {1, 2, 3}, ONLINE, (1, False)),
        (2, [2, 3], [], {1, 3}, ONLINE, (3, False)),
        (-1, [3], [], {1, 2, 3}, ONLINE, (3, False)),
        # The preferred leader is the first replica; if it is not in sync, the current leader stays.
        (2, [1, 2, 3], [], {1, 2, 3}, PREFERRED, (1, False)),
        (3, [2, 3], [], {1, 2, 3}, PREFERRED, (3, False)),
        (3, [1, 2, 3], [], {2, 3}, PREFERRED, (3, False)),
        (3, [3], [1], {1, 2, 3}, PREFERRED, (3, False)),
        # Eligible replicas come after those in sync.
        (-1, [3], [1], {1, 2, 3}, ONLINE, (3, False)),
        (-1, [], [3, 2], {1, 2, 3}, ONLINE, (2, False)),
        (-1, [], [3, 2], {1, 3}, UNCLEAN, (3, False)),
        # No replica in sync is online.
        (1, [1], [], {2, 3}, ONLINE, (-1, False)),
        (1, [1], [], {2, 3}, PREFERRED, (-1, False)),
        (1, [1], [], {2, 3}, UNCLEAN, (2, True)),
        (-1, [], [1], {2, 3}, ONLINE, (-1, False)),
        (1, [1], [], set(), UNCLEAN, (-1, False)),
    ],
)
def test_elections(
    leader: int, isr: list[int], elr: list[int], online: set[int], election: Election, expected: tuple[int, bool]
) -> None:
    assert elect_leader(partition(leader, isr, elr), TopicRules(election), online.__contains__) == expected


@pytest.mark.parametrize(
    ("elr", "known", "online", "expected"),
    [
        ([], [2], {1, 2, 3}, (2, True)),
        ([], [2], {1, 3}, (-1, False)),
        # It comes before the others; they lead only if its disk is lost.
        ([], [2, 1], {1, 3}, (-1, False)),
        # An eligible replica is waited for.
        ([3], [2], {1, 2}, (-1, False)),
    ],
)
def test_the_last_known_leader_is_elected_if_no_replica_is_eligible(
    elr: list[int], known: list[int], online: set[int], expected: tuple[int, bool]
) -> None:
    assert elect_leader(partition(-1, [], elr, known), TopicRules(), online.__contains__) == expected


def rules(min_isr: int, election: Election = ONLINE) -> TopicRules:
    return TopicRules(election, min_isr)


def test_nothing_changes() -> None:
    assert change_partition(partition(1, [1, 2]), {1, 2}.__contains__, rules(1)) is None
    assert change_partition(partition(1, [1, 2]), {1, 2}.__contains__, rules(2), isr=[1, 2]) is None
    assert change_partition(partition(1, [1], [2]), {1}.__contains__, rules(2)) is None


@pytest.mark.parametrize(
    ("before", "min_isr", "isr", "elr"),
    [
        # At min.insync.replicas, records are committed without the others.
        (partition(1, [1, 2, 3]), 2, [1, 2], []),
        (partition(1, [1, 2, 3]), 1, [1], []),
        # Below it they have all committed records.
        (partition(1, [1, 2, 3]), 2, [1], [2, 3]),
        (partition(1, [1, 2]), 2, [1], [2]),
        (partition(1, [1, 3], [2]), 3, [1], [2, 3]),
        (partition(1, [1], [2, 3]), 3, [1, 3], [2]),
        (partition(1, [1], [2, 3]), 2, [1, 3], []),
        # More than all replicas cannot be in sync.
        (partition(1, [1, 2], []), 5, [1, 2, 3], []),
    ],
)
def test_replicas_that_leave_the_isr_are_eligible_below_min_insync_replicas(
    before: PartitionRegistration, min_isr: int, isr: list[int], elr: list[int]
) -> None:
    changed = change_partition(before, {1, 2, 3}.__contains__, rules(min_isr), isr=isr)
    assert changed == PartitionRegistration(1, 5, [1, 2, 3], isr, elr, partition_epoch=10)


def test_another_leader_begins_a_leader_epoch() -> None:
    changed = change_partition(partition(1, [1, 2]), {2, 3}.__contains__, rules(1), isr=[2])
    assert changed == PartitionRegistration(2, 6, [1, 2, 3], [2], partition_epoch=10)


def test_the_last_replicas_in_sync_are_waited_for() -> None:
    changed = change_partition(partition(1, [1, 2]), {3}.__contains__, rules(1), isr=[])
    assert changed == PartitionRegistration(-1, 6, [1, 2, 3], [], [1, 2], [1], partition_epoch=10)
    # Either of them returns.
    returned = change_partition(changed, {2, 3}.__contains__, rules(1))
    assert returned == PartitionRegistration(2, 7, [1, 2, 3], [2], partition_epoch=11)
    returned = change_partition(changed, {2, 3}.__contains__, rules(2))
    assert returned == PartitionRegistration(2, 7, [1, 2, 3], [2], [1], [1], partition_epoch=11)


def test_a_replica_that_stopped_uncleanly_is_not_eligible() -> None:
    before = partition(-1, [], [1, 2], [1])
    changed = change_partition(before, {2, 3}.__contains__, rules(2), restarted=[2], unclean=[2])
    assert changed == PartitionRegistration(-1, 5, [1, 2, 3], [], [1], [1, 2], partition_epoch=10)
    # Then the last known leader is the best guess.
    changed = change_partition(changed, {1, 2, 3}.__contains__, rules(2), restarted=[1], unclean=[1])
    assert changed == PartitionRegistration(1, 6, [1, 2, 3], [1], partition_epoch=11)


def test_a_leader_with_another_disk_is_not_elected() -> None:
    changed = change_partition(
        partition(1, [1]), {1, 2}.__contains__, rules(1), isr=[], restarted=[1], unclean=[1], replaced_disks=[1]
    )
    assert changed == PartitionRegistration(-1, 6, [1, 2, 3], [], partition_epoch=10)
    changed = change_partition(changed, {1, 2}.__contains__, rules(1, UNCLEAN))
    assert changed == PartitionRegistration(1, 7, [1, 2, 3], [1], partition_epoch=11)


def test_another_replica_leads_if_the_disk_of_the_last_known_leader_was_replaced() -> None:
    """All three stopped uncleanly while there was no controller, and the leader has another disk."""
    everyone = {1, 2, 3}
    changed = change_partition(
        partition(1, [1, 2, 3]), everyone.__contains__, rules(2), isr=[], restarted=everyone, unclean=everyone,
        replaced_disks=[1],
    )  # fmt: skip
    assert changed == PartitionRegistration(2, 6, [1, 2, 3], [2], partition_epoch=10)


def test_another_replica_leads_if_the_leader_returns_first_with_another_disk() -> None:
    """All three were killed. The others return uncleanly, one after the other."""
    settled: PartitionRegistration | None = partition(1, [1, 2, 3])
    for broker, replaced in ((1, [1]), (2, []), (3, [])):
        assert settled is not None
        online = set(range(1, broker + 1))
        isr = [replica for replica in settled.isr if replica in online and replica != broker]
        changed = change_partition(
            settled, online.__contains__, rules(2), isr=isr, restarted=[broker], unclean=[broker],
            replaced_disks=replaced,
        )  # fmt: skip
        settled = changed or settled
    assert settled is not None
    assert (settled.leader, settled.isr) == (2, [2])


def test_replicas_that_were_eligible_before_an_unclean_stop_are_remembered() -> None:
    """The leader is in sync alone, so the others had all committed records when they stopped."""
    others, everyone = {2, 3}, {1, 2, 3}
    changed = change_partition(partition(1, [1], [2, 3]), {1}.__contains__, rules(2), unclean=others)
    assert changed == PartitionRegistration(1, 5, [1, 2, 3], [1], [], [2, 3], partition_epoch=10)
    # Its own log is the best guess, if there is one.
    again = change_partition(changed, everyone.__contains__, rules(2), isr=[], restarted=[1], unclean=[1])
    assert again == PartitionRegistration(1, 6, [1, 2, 3], [1], partition_epoch=11)
    replaced = change_partition(
        changed, everyone.__contains__, rules(2), isr=[], restarted=[1], unclean=[1], replaced_disks=[1]
    )
    assert replaced == PartitionRegistration(2, 6, [1, 2, 3], [2], partition_epoch=11)


def test_an_only_replica_leads_with_another_disk() -> None:
    single = PartitionRegistration(1, 5, [1], [1], partition_epoch=9)
    changed = change_partition(
        single, {1}.__contains__, rules(1), isr=[], restarted=[1], unclean=[1], replaced_disks=[1]
    )
    assert changed == PartitionRegistration(1, 6, [1], [1], partition_epoch=10)


def test_an_unclean_leader_is_alone_in_sync() -> None:
    changed = change_partition(partition(-1, [], [1], [1]), {3}.__contains__, rules(2, UNCLEAN))
    assert changed == PartitionRegistration(3, 6, [1, 2, 3], [3], partition_epoch=10)


def test_a_leader_that_restarted_begins_a_leader_epoch() -> None:
    single = PartitionRegistration(1, 5, [1], [1], partition_epoch=9)
    for unclean in ([], [1]):
        changed = change_partition(single, {1}.__contains__, rules(1), isr=[], restarted=[1], unclean=unclean)
        assert changed == PartitionRegistration(1, 6, [1], [1], partition_epoch=10)
    assert change_partition(partition(1, [1]), {1, 2}.__contains__, rules(1), restarted=[2]) is None


def test_a_lower_min_insync_replicas_ends_eligibility() -> None:
    changed = change_partition(partition(1, [1], [2]), {1}.__contains__, rules(1))
    assert changed == PartitionRegistration(1, 5, [1, 2, 3], [1], partition_epoch=10)
