"""Brokers appear, vanish and restart: which registrations change, and what it means for partitions."""

import pytest

from kbroker.metadata.image import BrokerEndpoint, BrokerNode, BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.replication.broker_changes import (
    BrokerChanges,
    acceptable_leaders,
    plan_broker_changes,
    settle_partition,
)
from kbroker.metadata.replication.partition_change import TopicRules


def broker(broker_id: int, epoch: int, *, stopping: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, "h", 9092, epoch=epoch, in_controlled_shutdown=stopping)


def node(broker_id: int, epoch: int, previous_epoch: int = -1) -> BrokerNode:
    return BrokerNode(broker(broker_id, epoch), previous_epoch)


def test_a_new_broker_is_registered() -> None:
    assert plan_broker_changes({1: node(1, 1)}, {}) == BrokerChanges(
        restarted={1: broker(1, 1)}, unclean={1}, replaced_disks={1}
    )


def test_a_broker_that_was_unregistered_and_returns_is_not_the_last_known_leader() -> None:
    """Its disk may be another one: nothing is stored that it could be compared with."""
    partition = PartitionRegistration(-1, 5, [1, 2], [], last_known_elr=[1])
    changes = plan_broker_changes({1: node(1, 9), 2: node(2, 2)}, {2: KnownBroker(broker(2, 2), False)})
    settled = settle_partition(partition, changes, {1, 2}.__contains__, TopicRules(min_insync_replicas=2))
    assert settled is not None
    assert (settled.leader, settled.last_known_elr) == (-1, [])


def test_nothing_changes() -> None:
    known = {1: KnownBroker(broker(1, 1), False), 2: KnownBroker(broker(2, 2), True)}
    changes = plan_broker_changes({1: node(1, 1)}, known)
    assert not changes
    assert changes.after(known, -1) == known


def test_what_a_controller_of_the_version_before_has_left_out_is_added() -> None:
    """It does not end the registration, nor any ISR membership."""
    known = {1: KnownBroker(broker(1, 7, stopping=True), False)}
    registered = broker(1, 7)._replace(endpoints=(BrokerEndpoint("A", "h", 1),))
    changes = plan_broker_changes({1: BrokerNode(registered)}, known)
    completed = registered._replace(in_controlled_shutdown=True)
    assert changes == BrokerChanges(completed={1: completed})
    assert changes
    assert changes.after(known, 5) == {1: KnownBroker(completed, False)}
    assert not plan_broker_changes({1: BrokerNode(registered)}, changes.after(known, 5))


def test_a_broker_without_a_session_is_fenced() -> None:
    known = {1: KnownBroker(broker(1, 1), False), 2: KnownBroker(broker(2, 2), False)}
    changes = plan_broker_changes({1: node(1, 1)}, known)
    assert changes == BrokerChanges(fenced={2: broker(2, 2)})
    assert changes.after(known, -1)[2] == KnownBroker(broker(2, 2), True)


def test_a_broker_that_restarted_between_two_looks_is_noticed_by_its_epoch() -> None:
    known = {1: KnownBroker(broker(1, 1, stopping=True), False)}
    changes = plan_broker_changes({1: node(1, 7)}, known)
    assert changes == BrokerChanges(restarted={1: broker(1, 7)}, unclean={1})
    assert changes.after(known, -1) == {1: KnownBroker(broker(1, 7), False)}


def test_a_broker_that_was_fenced_by_mistake_is_unfenced_in_its_epoch() -> None:
    known = {1: KnownBroker(broker(1, 7), True)}
    changes = plan_broker_changes({1: node(1, 7)}, known)
    assert changes == BrokerChanges(unfenced={1: broker(1, 7)})
    assert changes.after(known, -1) == {1: KnownBroker(broker(1, 7), False)}


@pytest.mark.parametrize(("previous_epoch", "unclean"), [(5, set()), (4, {1}), (-1, {1})])
def test_a_clean_stop_is_proved_by_the_epoch_that_the_controller_knows(previous_epoch: int, unclean: set[int]) -> None:
    known = {1: KnownBroker(broker(1, 5), True)}
    changes = plan_broker_changes({1: node(1, 7, previous_epoch)}, known)
    assert changes == BrokerChanges(restarted={1: broker(1, 7)}, unclean=unclean)


@pytest.mark.parametrize(("old", "new", "replaced"), [("a", "a", set()), ("a", "b", {1}), ("", "b", set())])
def test_a_replaced_disk_is_noticed_by_the_id_of_its_directory(old: str, new: str, replaced: set[int]) -> None:
    known = {1: KnownBroker(broker(1, 5)._replace(directory_id=old), True)}
    returned = BrokerNode(broker(1, 7)._replace(directory_id=new), -1)
    assert plan_broker_changes({1: returned}, known).replaced_disks == replaced


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
        (1, [1, 2, 3], [], {1, 3}, (1, 5, [1, 3], [])),
        # The leader vanishes.
        (1, [1, 2, 3], [], {2, 3}, (2, 6, [2, 3], [])),
        (1, [1], [], {2, 3}, (-1, 6, [], [1])),
        # All vanish.
        (1, [1, 2, 3], [], set(), (-1, 6, [], [1, 2, 3])),
        # A follower restarts.
        (1, [1, 2, 3], [2], {1, 2, 3}, (1, 5, [1, 3], [])),
        # The leader restarts: another one is elected; alone in sync, it begins a new epoch.
        (1, [1, 2, 3], [1], {1, 2, 3}, (2, 6, [2, 3], [])),
        (1, [1], [1], {1, 2, 3}, (1, 6, [1], [])),
        # One restarts while the other vanishes: the log of the one that did not restart is more certain.
        (1, [1, 2], [1], {1, 3}, (-1, 6, [], [2])),
        # All restart: the last leader's log is the best guess.
        (1, [1, 2, 3], [1, 2, 3], {1, 2, 3}, (1, 6, [1], [])),
        # A former controller has failed half-way: a fenced broker leads.
        (2, [1, 2], [], {1, 3}, (1, 6, [1], [])),
        # The broker has nothing to do with the partition.
        (1, [1], [2], {1, 2, 3}, None),
    ],
)
def test_partitions_are_settled(
    leader: int,
    isr: list[int],
    restarted: list[int],
    online: set[int],
    expected: tuple[int, int, list[int], list[int]] | None,
) -> None:
    partition = PartitionRegistration(leader, 5, [1, 2, 3], isr, partition_epoch=9)
    changes = BrokerChanges(
        restarted={broker_id: broker(broker_id, 7) for broker_id in restarted}, unclean=set(restarted)
    )
    settled = settle_partition(partition, changes, online.__contains__, TopicRules())
    if expected is None:
        assert settled is None
        return
    leader, epoch, isr, elr = expected
    assert settled is not None
    assert (settled.leader, settled.leader_epoch, settled.isr, settled.elr) == (leader, epoch, isr, elr)
    assert settled.partition_epoch == 10
    assert settle_partition(settled, BrokerChanges(), online.__contains__, TopicRules()) is None
