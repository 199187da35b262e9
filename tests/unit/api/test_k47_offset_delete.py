"""OffsetDelete: results by partition, errors of the whole request."""

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.unit.support.group_coordinator import Harness


def request_for(*partitions: int) -> OffsetDeleteRequest:
    rows = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
    return OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=rows)])


def test_offsets_are_deleted_one_by_one(group_broker: Harness) -> None:
    group_broker.commit_offset("t", 0, OffsetAndMetadata(1))
    group_broker.commit_offset("t", 1, OffsetAndMetadata(2))
    response = group_broker.call(request_for(1, 7), 0)
    assert response.error_code == 0
    assert [partition.error_code for partition in response.topics[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert group_broker.committed_offsets() == {"t": {0: OffsetAndMetadata(1)}}
    # Deleting an offset that does not exist writes nothing.
    before = group_broker.log.record_count()
    assert group_broker.call(request_for(1), 0).topics[0].partitions[0].error_code == 0
    assert group_broker.log.record_count() == before


def test_errors_of_the_whole_request(group_broker: Harness) -> None:
    assert group_broker.call(OffsetDeleteRequest(), 0).error_code == ErrorCode.INVALID_GROUP_ID
    response = group_broker.call(request_for(0), 0)
    assert (response.error_code, response.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    group_broker.lose_group()
    assert group_broker.call(request_for(0), 0).error_code == ErrorCode.NOT_COORDINATOR


def test_a_deletion_that_cannot_be_written_returns_an_error(group_broker: Harness) -> None:
    group_broker.commit_offset("t", 0, OffsetAndMetadata(1))
    group_broker.log.append_error = ErrorCode.KAFKA_STORAGE_ERROR
    assert group_broker.call(request_for(0), 0).error_code == ErrorCode.NOT_COORDINATOR
