"""Elections on request, and the balance of leaders, as tables."""

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_change import TopicRules
from kbroker.metadata.replication.partition_requests import (
    ElectionType,
    balance_leader,
    elect_on_request,
    parse_election_type,
    unknown_partition,
)
from protocol.errors import ErrorCode

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def partition(leader: int, isr: list[int]) -> PartitionRegistration:
    return PartitionRegistration(leader, 5, [1, 2, 3], isr, partition_epoch=9)


@pytest.mark.parametrize(
    ("election_type", "leader", "isr", "online", "expected"),
    [
        (PREFERRED, 1, [1, 2], {1, 2, 3}, ErrorCode.ELECTION_NOT_NEEDED),
        (PREFERRED, 2, [2, 1], {1, 2, 3}, 1),
        (PREFERRED, 2, [2, 3], {1, 2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (PREFERRED, 2, [2, 1], {2, 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        # Without a leader, any replica in sync is better than none.
        (PREFERRED, -1, [2], {1, 2, 3}, 2),
        (UNCLEAN, 2, [2], {1, 2, 3}, ErrorCode.ELECTION_NOT_NEEDED),
        (UNCLEAN, -1, [2], {1, 3}, 1),
        (UNCLEAN, -1, [2], {1, 2, 3}, 2),
        (UNCLEAN, -1, [2], {4}, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_elections_on_request(
    election_type: ElectionType, leader: int, isr: list[int], online: set[int], expected: int
) -> None:
    if isinstance(expected, ErrorCode):
        with pytest.raises(KafkaError, match=expected.name):
            elect_on_request(partition(leader, isr), election_type, online.__contains__, TopicRules())
        return
    elected = elect_on_request(partition(leader, isr), election_type, online.__contains__, TopicRules())
    assert (elected.leader, elected.leader_epoch, elected.partition_epoch) == (expected, 6, 10)
    assert elected.leader in elected.isr


@pytest.mark.parametrize(
    ("leader", "isr", "online", "expected"),
    [
        (1, [1, 2], {1, 2, 3}, None),
        (2, [2, 1], {1, 2, 3}, 1),
        (2, [2, 3], {1, 2, 3}, None),
        (2, [2, 1], {2, 3}, None),
        (-1, [2], {1, 3}, None),
    ],
)
def test_leaders_return_to_preferred_replicas_that_are_in_sync(
    leader: int, isr: list[int], online: set[int], expected: int | None
) -> None:
    balanced = balance_leader(partition(leader, isr), online.__contains__, TopicRules())
    assert (balanced and balanced.leader) == expected


def test_unknown_types_and_partitions() -> None:
    with pytest.raises(KafkaError, match="INVALID_REQUEST: Unknown election type 2"):
        parse_election_type(2)
    assert unknown_partition({"t"}, "t", 4).message == "No such partition as t-4"
    assert unknown_partition({"t"}, "u", 4).message == "No such topic as u"
