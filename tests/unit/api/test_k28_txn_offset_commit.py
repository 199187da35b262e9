import pytest

from kbroker.api.k28_txn_offset_commit import error_for_client
from protocol.errors import ErrorCode
from protocol.messages.k22_init_producer_id import InitProducerIdRequest
from protocol.messages.k25_add_offsets_to_txn import AddOffsetsToTxnRequest
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.unit.support.group_coordinator import Harness


def request_for(*partitions: int, topic: str = "t", group: str = "g") -> TxnOffsetCommitRequest:
    wanted = [
        TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata=None)
        for index in partitions
    ]
    return TxnOffsetCommitRequest(
        transactional_id="T",
        group_id=group,
        producer_id=1,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=wanted)],
    )


def begin(broker: Harness, *, add: bool = False) -> None:
    """Make the producer 1 of epoch 0; `add`: with a transaction that the group is part of."""
    broker.call(InitProducerIdRequest(transactional_id="T", transaction_timeout_ms=1000), 4)
    if add:
        request = AddOffsetsToTxnRequest(transactional_id="T", producer_id=1, producer_epoch=0, group_id="g")
        assert broker.call(request, 3).error_code == 0


def codes(answer: object) -> list[ErrorCode]:
    return [ErrorCode(one.error_code) for one in answer.topics[0].partitions]  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", range(6))
def test_every_version_writes_offsets_into_the_transaction(group_broker: Harness, version: int) -> None:
    begin(group_broker, add=version < 5)
    answer = group_broker.call(request_for(0, 1, 9), version)
    assert codes(answer) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
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


def test_only_version_5_adds_the_group_whether_or_not_others_are_verified(group_broker: Harness) -> None:
    begin(group_broker)
    group_broker.config.transaction_partition_verification_enable = False
    assert codes(group_broker.call(request_for(0), 5)) == [ErrorCode.NONE]
    (partition,) = group_broker.transactions.describe("T").partitions
    assert partition == ("__consumer_offsets", group_broker.groups.runtime.partition_for("g"))


def test_nothing_is_asked_of_anybody_for_topics_that_do_not_exist(group_broker: Harness) -> None:
    answer = group_broker.call(request_for(0, topic="gone", group=""), 5)
    assert codes(answer) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes(group_broker.call(request_for(0, group=""), 5)) == [ErrorCode.INVALID_GROUP_ID]


def test_metadata_that_is_too_large_is_refused_alone(group_broker: Harness) -> None:
    begin(group_broker)
    request = request_for(0, 1)
    request.topics[0].partitions[0].committed_metadata = "m" * 4097
    assert codes(group_broker.call(request, 5)) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]


def test_a_group_of_another_broker(group_broker: Harness) -> None:
    begin(group_broker)
    group_broker.lose_group()
    assert codes(group_broker.call(request_for(0), 5)) == [ErrorCode.NOT_COORDINATOR]
    # It was not added either: who commits at the right one adds it.
    assert not group_broker.transactions.describe("T").partitions


@pytest.mark.parametrize(
    ("code", "version", "told"),
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
    ],
)
def test_what_clients_are_told(code: ErrorCode, version: int, told: ErrorCode) -> None:
    assert error_for_client(code, version) is told
