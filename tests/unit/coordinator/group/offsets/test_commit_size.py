"""A commit whose records do not fit into a batch is refused before they are encoded, as in Kafka."""

from typing import Any

import pytest

from kbroker.api import k08_offset_commits
from kbroker.common import KafkaError
from kbroker.coordinator.group import records as offset_records
from kbroker.coordinator.group.group_coordinator import SMALL_COMMIT
from kbroker.coordinator.group.kinds import RECORD_CODEC
from kbroker.coordinator.group.offset_metadata_manager import MIN_RECORD_BYTES, validate_commit_size
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.runtime.turns import release
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.records.batch import build_batch
from tests.unit.support.simulated_broker import Machine, broker_test


def records(count: int, metadata: str = "", topic: str = "t") -> list[OffsetRecord]:
    return [
        OffsetRecord(OffsetKey("g", topic, index), OffsetAndMetadata(7, metadata=metadata)) for index in range(count)
    ]


@pytest.mark.parametrize("metadata", ["", "m" * 100])
def test_the_size_is_a_lower_bound_close_to_that_of_the_batch(metadata: str) -> None:
    offsets = records(1000, metadata)
    batch = build_batch([(0, *RECORD_CODEC.encode(record), ()) for record in offsets])
    validate_commit_size(offsets, len(batch))
    validate_commit_size(offsets, None)
    with pytest.raises(KafkaError) as refused:
        validate_commit_size(offsets, len(batch) * 3 // 4)
    assert refused.value.code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert 1000 * (MIN_RECORD_BYTES + 2 + len(metadata)) <= len(batch)


@broker_test
async def test_nothing_is_encoded(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await client.create_topic("t", partitions=2)
    await client.request(FindCoordinatorRequest(key="g"), 2, FindCoordinatorResponse)
    encoded: list[Any] = []
    encode_offset = offset_records._encode_offset
    monkeypatch.setattr(
        offset_records, "_encode_offset", lambda offset: encoded.append(offset) or encode_offset(offset)
    )

    async def commit(count: int, metadata: str) -> set[int]:
        partitions = [
            OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=metadata)
            for _ in range(count)
        ]
        topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
        request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
        response = await client.request(request, 8, OffsetCommitResponse)
        return {result.error_code for topic in response.topics for result in topic.partitions}

    released: list[int] = []
    monkeypatch.setattr(
        k08_offset_commits, "release", lambda offsets: released.append(len(offsets)) or release(offsets)
    )
    assert await commit(300, "m" * 4000) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert not encoded
    assert released == [300]
    assert await commit(SMALL_COMMIT + 1, "m" * 4000) == {0}
    assert len(encoded) == SMALL_COMMIT + 1
    assert released == [300]
