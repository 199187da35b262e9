"""Brokers appear, vanish and restart: which registrations change, and what it means for partitions."""

import pytest

from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.replication.broker_changes import (
    BrokerChanges,
    acceptable_leaders,
    plan_broker_changes,
    settle_partition,
)


def broker(broker_id: int, epoch: int, *, stopping: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, "h", 9092, epoch=epoch, in_controlled_shutdown=stopping)


def test_a_new_broker_is_registered() -> None:
    assert plan_broker_changes({1: broker(1, 1)}, {}) == BrokerChanges(restarted={1: broker(1, 1)})


def test_nothing_changes() -> None:
    known = {1: KnownBroker(broker(1, 1), False), 2: KnownBroker(broker(2, 2), True)}
    changes = plan_broker_changes({1: broker(1, 1)}, known)
    assert not changes
    assert changes.after(known) == known


def test_a_broker_without_a_session_is_fenced() -> None:
    known = {1: KnownBroker(broker(1, 1), False), 2: KnownBroker(broker(2, 2), False)}
    changes = plan_broker_changes({1: broker(1, 1)}, known)
    assert changes == BrokerChanges(fenced={2: broker(2, 2)})
    assert changes.after(known)[2] == KnownBroker(broker(2, 2), True)


def test_a_broker_that_restarted_between_two_looks_is_noticed_by_its_epoch() -> None:
    known = {1: KnownBroker(broker(1, 1, stopping=True), False)}
    changes = plan_broker_changes({1: broker(1, 7)}, known)
    assert changes == BrokerChanges(restarted={1: broker(1, 7)})
    assert changes.after(known) == {1: KnownBroker(broker(1, 7), False)}


def test_a_broker_that_was_fenced_by_mistake_is_unfenced_in_its_epoch() -> None:
    known = {1: KnownBroker(broker(1, 7), True)}
    changes = plan_broker_changes({1: broker(1, 7)}, known)
    assert changes == BrokerChanges(unfenced={1: broker(1, 7)})
    assert changes.after(known) == {1: KnownBroker(broker(1, 7), False)}


def test_brokers_that_are_fenced_or_stopping_do_not_lead() -> None:
    known = {
        1: KnownBroker(broker(1, 1), False),
        2: KnownBroker(broker(2, 2), True),
        3: KnownBroker(broker(3, 3, stopping=True), False),
    }
    assert acceptable_leaders(known) == {1}


@pytest.mark.parametrize(
    ("leader", "isr", "restarted", "online", "expected"),
    [
        # A follower vanishes.
        (1, [1, 2, 3], [], {1, 3}, (1, 5, [1, 3])),
        # The leader vanishes.
        (1, [1, 2, 3], [], {2, 3}, (2, 6, [2, 3])),
        (1, [1], [], {2, 3}, (-1, 6, [1])),
        # All vanish: the last one stays.
        (1, [1, 2, 3], [], set(), (-1, 6, [3])),
        # A follower restarts.
        (1, [1, 2, 3], [2], {1, 2, 3}, (1, 5, [1, 3])),
        # The leader restarts: another one is elected; alone in sync, it begins a new epoch.
        (1, [1, 2, 3], [1], {1, 2, 3}, (2, 6, [2, 3])),
        (1, [1], [1], {1, 2, 3}, (1, 6, [1])),
        (-1, [1], [1], {1, 2, 3}, (1, 6, [1])),
        # One restarts while the other vanishes: the log of the one that did not restart is more certain.
        (1, [1, 2], [1], {1, 3}, (-1, 6, [2])),
        # All restart.
        (1, [1, 2, 3], [1, 2, 3], {1, 2, 3}, (3, 6, [3])),
        # A former controller has failed half-way: a fenced broker leads.
        (2, [1, 2], [], {1, 3}, (1, 6, [1])),
        # The broker has nothing to do with the partition.
        (1, [1], [2], {1, 2, 3}, None),
    ],
)
def test_partitions_are_settled(
    leader: int, isr: list[int], restarted: list[int], online: set[int], expected: tuple[int, int, list[int]] | None
) -> None:
    partition = PartitionRegistration(leader, 5, [1, 2, 3], isr, partition_epoch=9)
    changes = BrokerChanges(restarted={broker_id: broker(broker_id, 7) for broker_id in restarted})
    settled = settle_partition(partition, changes, online.__contains__)
    if expected is None:
        assert settled is None
        return
    leader, epoch, isr = expected
    assert settled == PartitionRegistration(leader, epoch, [1, 2, 3], isr, partition_epoch=10)
    assert settle_partition(settled, BrokerChanges(), online.__contains__) is None
