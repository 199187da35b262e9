"""AlterPartition: each check, and their order."""

import pytest

from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.replication.alter_partition import RequestedIsr, alter_partition
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import TopicRules
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
