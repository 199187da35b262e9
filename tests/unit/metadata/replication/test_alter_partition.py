"""AlterPartition: each check, and their order. A broker that cannot write leads only where no other one could."""

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration, WriteHealth
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import Election, ElectionResult, TopicRules, elect_leader
from kbroker.metadata.replication.partition_requests import (
    ElectionType,
    RequestedIsr,
    alter_partition,
    balance_leader,
    elect_on_request,
    give_up_replica,
    may_join,
    write_health_by_broker,
)
from protocol.errors import ErrorCode

PARTITION = PartitionRegistration(1, 5, [1, 2, 3, 4], [1, 2], partition_epoch=9)


def known(broker_id: int, *, fenced: bool = False, stopping: bool = False) -> KnownBroker:
    broker = BrokerRegistration(broker_id, "h", 9092, epoch=10 * broker_id, in_controlled_shutdown=stopping)
    return KnownBroker(broker, fenced)


KNOWN = {1: known(1), 2: known(2), 3: known(3, fenced=True), 4: known(4, stopping=True)}


def propose(
    isr: list[tuple[int, int]], leader: int = 1, leader_epoch: int = 5, partition_epoch: int = 9
) -> PartitionRegistration | ErrorCode:
    proposal = RequestedIsr(leader_epoch, partition_epoch, isr)
    return alter_partition(PARTITION, leader, proposal, KNOWN, acceptable_leaders(KNOWN).__contains__, TopicRules())


def test_an_isr_shrinks_and_expands() -> None:
    assert propose([(1, 10)]) == PartitionRegistration(1, 5, [1, 2, 3, 4], [1], partition_epoch=10)
    assert propose([(1, -1), (2, -1)]) is PARTITION


@pytest.mark.parametrize(
    ("isr", "leader", "leader_epoch", "partition_epoch", "error"),
    [
        ([(1, 10)], 2, 6, 9, ErrorCode.NOT_CONTROLLER),
        ([(1, 10)], 2, 5, 10, ErrorCode.NOT_CONTROLLER),
        ([(1, 10)], 2, 4, 10, ErrorCode.NOT_CONTROLLER),
        ([(1, 10)], 2, 4, 9, ErrorCode.FENCED_LEADER_EPOCH),
        ([(1, 10)], 2, 5, 8, ErrorCode.INVALID_REQUEST),
        ([(5, 10)], 1, 5, 8, ErrorCode.INVALID_UPDATE_VERSION),
        ([], 1, 5, 9, ErrorCode.INVALID_REQUEST),
        ([(2, 20)], 1, 5, 9, ErrorCode.INVALID_REQUEST),
        ([(1, 10), (1, 10)], 1, 5, 9, ErrorCode.INVALID_REQUEST),
        ([(1, 10), (5, 50)], 1, 5, 9, ErrorCode.INVALID_REQUEST),
        # Fenced (KIP-841), shutting down, a former epoch (KIP-903).
        ([(1, 10), (3, 30)], 1, 5, 9, ErrorCode.INELIGIBLE_REPLICA),
        ([(1, 10), (4, 40)], 1, 5, 9, ErrorCode.INELIGIBLE_REPLICA),
        ([(1, 10), (2, 19)], 1, 5, 9, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_checks(
    isr: list[tuple[int, int]], leader: int, leader_epoch: int, partition_epoch: int, error: ErrorCode
) -> None:
    assert propose(isr, leader, leader_epoch, partition_epoch) is error


OK, PROBATION, FAILING = WriteHealth
ALL = {1, 2, 3}.__contains__


def rules(health: dict[int, WriteHealth], min_isr: int = 2, election: Election = Election.ONLINE) -> TopicRules:
    return TopicRules(election, min_isr, health)


def partition(leader: int, isr: list[int], elr: list[int] | None = None) -> PartitionRegistration:
    return PartitionRegistration(leader, 5, [1, 2, 3], isr, elr or [], partition_epoch=9)


@pytest.mark.parametrize(
    ("leader", "isr", "elr", "health", "expected"),
    [
        (1, [1, 2, 3], [], {1: FAILING}, 2),
        (1, [1, 2, 3], [], {1: FAILING, 2: PROBATION}, 3),
        (1, [1, 2, 3], [], {1: FAILING, 2: PROBATION, 3: FAILING}, 2),
        # The leader stays on probation, and if all fail.
        (1, [1, 2, 3], [], {1: PROBATION}, 1),
        (2, [1, 2, 3], [], {1: FAILING, 2: FAILING, 3: FAILING}, 2),
        # Those in sync come before those that are eligible.
        (-1, [1], [2], {1: FAILING}, 1),
        (-1, [], [1, 2], {1: FAILING}, 2),
        (-1, [], [1], {1: FAILING}, 1),
    ],
)
def test_elections(leader: int, isr: list[int], elr: list[int], health: dict[int, WriteHealth], expected: int) -> None:
    assert elect_leader(partition(leader, isr, elr), rules(health), ALL) == ElectionResult(expected)


def test_an_unclean_election_prefers_brokers_that_can_write() -> None:
    found = elect_leader(partition(-1, [], []), rules({1: FAILING}, election=Election.UNCLEAN), ALL)
    assert found == ElectionResult(2, unclean=True)


@pytest.mark.parametrize("health", [PROBATION, FAILING])
def test_the_preferred_leader_is_not_elected(health: WriteHealth) -> None:
    state = partition(2, [1, 2, 3])
    assert balance_leader(state, ALL, rules({1: health})) is None
    with pytest.raises(KafkaError) as refusal:
        elect_on_request(state, ElectionType.PREFERRED, ALL, rules({1: health}))
    assert refusal.value.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_a_leader_gives_up_its_replica() -> None:
    assert give_up_replica(partition(1, [1, 2, 3]), 1, ALL, rules({1: FAILING})) == PartitionRegistration(
        2, 6, [1, 2, 3], [2, 3], partition_epoch=10
    )


def test_a_follower_does_so_in_the_same_leader_epoch() -> None:
    assert give_up_replica(partition(1, [1, 2, 3]), 3, ALL, rules({3: FAILING})) == PartitionRegistration(
        1, 5, [1, 2, 3], [1, 2], partition_epoch=10
    )


def test_below_min_insync_replicas_it_stays_eligible() -> None:
    """The high watermark does not advance without it, so it has all committed records."""
    assert give_up_replica(partition(1, [1, 2]), 1, ALL, rules({1: FAILING})) == PartitionRegistration(
        2, 6, [1, 2, 3], [2], [1], partition_epoch=10
    )


@pytest.mark.parametrize(
    ("isr", "health", "acceptable"),
    [
        ([1], {1: FAILING}, {1, 2, 3}),
        ([2, 3], {1: FAILING}, {1, 2, 3}),
        ([1, 2, 3], {1: FAILING, 2: FAILING, 3: FAILING}, {1, 2, 3}),
        # Shutting down.
        ([1, 2], {1: FAILING}, {1, 3}),
    ],
)
def test_it_keeps_its_replica(isr: list[int], health: dict[int, WriteHealth], acceptable: set[int]) -> None:
    assert give_up_replica(partition(isr[0], isr), 1, acceptable.__contains__, rules(health)) is None


@pytest.mark.parametrize(
    ("isr", "health", "min_isr", "expected"),
    [
        ([1, 2], {}, 2, True),
        ([1, 2], {3: FAILING}, 2, False),
        ([1], {3: FAILING}, 2, False),
        ([1, 2], {3: PROBATION}, 2, False),
        # Writes would stop without it.
        ([1], {3: PROBATION}, 2, True),
        ([1, 2], {2: FAILING, 3: PROBATION}, 2, True),
        ([1], {3: PROBATION}, 1, False),
    ],
)
def test_joining(isr: list[int], health: dict[int, WriteHealth], min_isr: int, expected: bool) -> None:
    assert may_join(3, isr, lambda broker: health.get(broker, OK), min_isr) is expected


def known_brokers(**health: WriteHealth) -> dict[int, KnownBroker]:
    return {
        id: KnownBroker(
            BrokerRegistration(id, "h", 1, epoch=10 * id, write_health=health.get(f"b{id}", OK)), fenced=False
        )
        for id in (1, 2, 3)
    }


@pytest.mark.parametrize(
    ("state", "isr", "brokers", "expected"),
    [
        (partition(1, [1, 2]), [1, 2, 3], known_brokers(b3=FAILING), ErrorCode.INELIGIBLE_REPLICA),
        (partition(1, [1, 2]), [1, 2, 3], known_brokers(b3=PROBATION), ErrorCode.INELIGIBLE_REPLICA),
        # Members stay until they give up their replicas themselves.
        (partition(1, [1, 2]), [1, 2, 3], known_brokers(b2=FAILING), (1, [1, 2, 3])),
        (partition(1, [1, 2, 3]), [1, 2], known_brokers(b1=FAILING, b2=FAILING), (1, [1, 2])),
        # The leader cannot write: the joining one leads.
        (partition(1, [1]), [1, 2], known_brokers(b1=FAILING), (2, [1, 2])),
    ],
)
def test_alter_partition(
    state: PartitionRegistration,
    isr: list[int],
    brokers: dict[int, KnownBroker],
    expected: tuple[int, list[int]] | ErrorCode,
) -> None:
    requested = RequestedIsr(5, 9, [(id, 10 * id) for id in isr])
    result = alter_partition(state, 1, requested, brokers, ALL, rules(write_health_by_broker(brokers)))
    found = result if isinstance(result, ErrorCode) else (result.leader, result.isr)
    assert found == expected
