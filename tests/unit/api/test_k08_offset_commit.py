"""OffsetCommit in every version: results, unknown partitions, metadata that is too large, retries."""

import pytest

from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.k11_classic_groups import SyncGroupRequest
from tests.unit.support.group_coordinator import Harness


def request_for(harness: Harness, version: int, *partitions: int, metadata: str | None = None) -> OffsetCommitRequest:
    topic = OffsetCommitRequestTopic(
        partitions=[
            OffsetCommitRequestPartition(partition_index=index, committed_offset=7, committed_metadata=metadata)
            for index in partitions
        ]
    )
    if version >= 10:
        topic.topic_id = harness.metadata.topics["t"].topic_id
    else:
        topic.name = "t"
    return OffsetCommitRequest(group_id="g", topics=[topic])


@pytest.mark.parametrize("version", range(2, 11))
def test_every_version_commits(group_broker: Harness, version: int) -> None:
    response = group_broker.call(request_for(group_broker, version, 0, 1, 9), version)
    assert [partition.error_code for partition in response.topics[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    committed = group_broker.committed_offsets()["t"][1]
    assert (committed.offset, committed.metadata, committed.topic_id) == (
        7,
        "",
        group_broker.metadata.topics["t"].topic_id,
    )
    assert committed.commit_ms == group_broker.environment.clock.now_ms()


@pytest.mark.parametrize("version", [2, 4, 5])
def test_versions_2_to_4_have_a_retention_time(group_broker: Harness, version: int) -> None:
    request = request_for(group_broker, version, 0)
    if version < 5:
        request.retention_time_ms = 1000
    group_broker.call(request, version)
    committed = group_broker.committed_offsets()["t"][0]
    assert committed.expire_ms == (group_broker.environment.clock.now_ms() + 1000 if version < 5 else -1)


def test_a_negative_partition_does_not_exist(group_broker: Harness) -> None:
    response = group_broker.call(request_for(group_broker, 9, -1), 9)
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_only_existing_partitions_get_the_error_of_the_coordinator(group_broker: Harness) -> None:
    group_broker.lose_group()
    response = group_broker.call(request_for(group_broker, 9, 0, 9), 9)
    assert [partition.error_code for partition in response.topics[0].partitions] == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def test_metadata_that_is_too_large_is_rejected(group_broker: Harness) -> None:
    """Nothing is written if the metadata of all partitions is too large."""
    before = group_broker.log.record_count()
    response = group_broker.call(request_for(group_broker, 9, 0, metadata="m" * 5000), 9)
    assert response.topics[0].partitions[0].error_code == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert group_broker.log.record_count() == before
    assert GROUP_METADATA_TOPIC in group_broker.metadata.topics


def test_a_commit_that_is_not_committed_in_time_can_be_retried(group_broker: Harness) -> None:
    """After offsets.commit.timeout.ms the error is that of Kafka."""
    group_broker.log.held = True
    commit = group_broker.start(request_for(group_broker, 9, 0), 9)
    group_broker.loop.pass_ms(4999)
    assert not commit.done()
    group_broker.loop.pass_ms(1)
    assert commit.result().topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    # The records count once they are committed.
    group_broker.log.commit()
    assert list(group_broker.committed_offsets()["t"]) == [0]


@pytest.mark.parametrize("version", [2, 9, 10])
def test_offsets_of_removed_partitions_are_accepted_from_members(group_broker: Harness, version: int) -> None:
    """The topic has lost partitions: a member could repeat a commit that fails for minutes before it joins again."""
    member_id = group_broker.join_group()
    group_broker.call(SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3)
    group_broker.metadata.topics["t"].removed_from = 9
    group_broker.metadata.topics["t"].removed_to = 12

    def codes(generation_id: int, *partitions: int) -> list[int]:
        request = request_for(group_broker, version, *partitions)
        request.member_id = member_id if generation_id >= 0 else ""
        request.generation_id_or_member_epoch = generation_id
        response = group_broker.call(request, version)
        return [partition.error_code for partition in response.topics[0].partitions]

    assert codes(1, 9) == [ErrorCode.NONE]
    assert codes(1, 0, 9, 8) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert list(group_broker.committed_offsets()["t"]) == [0]
    # The topic has never had this one.
    assert codes(1, 12, 1_000_000) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    # The generation counts for them, too. What has no generation is a tool's.
    assert codes(0, 9) == [ErrorCode.ILLEGAL_GENERATION]
    assert codes(-1, 9) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
