"""TxnOffsetCommit in every version: the group must be part of the transaction; errors by version."""

import pytest

from kbroker.api.k08_offset_commits import transactional_commit_error
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.messages.k11_classic_groups import SyncGroupRequest
from protocol.messages.k22_transactions import AddOffsetsToTxnRequest, InitProducerIdRequest
from tests.unit.support.group_coordinator import Harness


def request_for(*partitions: int, topic: str = "t", group: str = "g") -> TxnOffsetCommitRequest:
    offsets = [
        TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata=None)
        for index in partitions
    ]
    return TxnOffsetCommitRequest(
        transactional_id="T",
        group_id=group,
        producer_id=1,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=offsets)],
    )


def begin(broker: Harness, *, add: bool = False) -> None:
    """Create the producer with id 1 and epoch 0. `add`: add the group to its transaction."""
    broker.call(InitProducerIdRequest(transactional_id="T", transaction_timeout_ms=1000), 4)
    if add:
        request = AddOffsetsToTxnRequest(transactional_id="T", producer_id=1, producer_epoch=0, group_id="g")
        assert broker.call(request, 3).error_code == 0


def codes(response: object) -> list[ErrorCode]:
    return [ErrorCode(partition.error_code) for partition in response.topics[0].partitions]  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(6))
def test_every_version_commits_offsets_in_the_transaction(group_broker: Harness, version: int) -> None:
    begin(group_broker, add=version < 5)
    response = group_broker.call(request_for(0, 1, 9), version)
    assert codes(response) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert group_broker.unstable_partitions() == {("t", 0), ("t", 1)}


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, ErrorCode.INVALID_TXN_STATE), (3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_group_that_is_not_part_of_the_transaction(group_broker: Harness, version: int, code: ErrorCode) -> None:
    begin(group_broker)
    assert codes(group_broker.call(request_for(0, 9), version)) == [code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not group_broker.unstable_partitions()
    group_broker.config.transaction_partition_verification_enable = False
    assert codes(group_broker.call(request_for(0), version)) == [ErrorCode.NONE]


def test_version_5_adds_the_group_even_without_verification(group_broker: Harness) -> None:
    begin(group_broker)
    group_broker.config.transaction_partition_verification_enable = False
    assert codes(group_broker.call(request_for(0), 5)) == [ErrorCode.NONE]
    (partition,) = group_broker.transactions.describe("T").partitions
    assert partition == ("__consumer_offsets", group_broker.groups.runtime.partition_for("g"))


def test_version_6_names_topics_by_id(group_broker: Harness) -> None:
    begin(group_broker)
    request = request_for(0, topic="")
    assert codes(group_broker.call(request, 6)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    topic = group_broker.metadata.topics["t"]
    request.topics[0].topic_id = topic.topic_id
    response = group_broker.call(request, 6)
    assert (codes(response), response.topics[0].topic_id) == ([ErrorCode.NONE], topic.topic_id)
    assert group_broker.unstable_partitions() == {("t", 0)}


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_member_of_a_group_that_does_not_exist(group_broker: Harness, version: int, code: ErrorCode) -> None:
    begin(group_broker)
    request = request_for(0, group="gone")
    request.topics[0].topic_id = group_broker.metadata.topics["t"].topic_id
    request.member_id, request.generation_id_or_member_epoch = "m", 1
    assert codes(group_broker.call(request, version)) == [code]


def test_topics_that_do_not_exist_are_an_error_before_the_group_is_validated(group_broker: Harness) -> None:
    response = group_broker.call(request_for(0, topic="gone", group=""), 5)
    assert codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(group_broker.call(request_for(0, group=""), 5)) == [ErrorCode.INVALID_GROUP_ID]


def test_metadata_that_is_too_large_is_an_error_of_its_partition(group_broker: Harness) -> None:
    begin(group_broker)
    request = request_for(0, 1)
    request.topics[0].partitions[0].committed_metadata = "m" * 4097
    assert codes(group_broker.call(request, 5)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]


def test_a_group_of_another_broker(group_broker: Harness) -> None:
    begin(group_broker)
    group_broker.lose_group()
    assert codes(group_broker.call(request_for(0), 5)) == [ErrorCode.NOT_COORDINATOR]
    # The partition was not added to the transaction.
    assert not group_broker.transactions.describe("T").partitions


@pytest.mark.parametrize(
    ("error", "version", "returned"),
    [
        (ErrorCode.PRODUCER_FENCED, 5, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NETWORK_EXCEPTION, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 5, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.ILLEGAL_GENERATION, 0, ErrorCode.ILLEGAL_GENERATION),
        (ErrorCode.STALE_MEMBER_EPOCH, 5, ErrorCode.ILLEGAL_GENERATION),
        (ErrorCode.STALE_MEMBER_EPOCH, 6, ErrorCode.STALE_MEMBER_EPOCH),
    ],
)
def test_errors_by_version(error: ErrorCode, version: int, returned: ErrorCode) -> None:
    assert transactional_commit_error(error, version) is returned


def test_offsets_of_removed_partitions_are_accepted_from_members(group_broker: Harness) -> None:
    begin(group_broker, add=True)
    member_id = group_broker.join_group()
    group_broker.call(SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3)
    group_broker.metadata.topics["t"].removed_from = 9
    request = request_for(0, 9, 8)
    assert codes(group_broker.call(request, 3))[1:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    request.member_id, request.generation_id_or_member_epoch = member_id, 1
    assert codes(group_broker.call(request, 3)) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert group_broker.unstable_partitions() == {("t", 0)}
