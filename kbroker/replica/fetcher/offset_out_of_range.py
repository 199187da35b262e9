"""Asks the leader where its log starts and ends, when it does not have the offset that its follower fetches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from protocol.errors import known_error
from protocol.messages.k02_list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

if TYPE_CHECKING:
    from kbroker.replica.fetcher.leader_end_point import LeaderEndPoint
    from kbroker.replica.fetcher.partition_fetch_state import PartitionFetchState

LATEST, EARLIEST = -1, -2


async def leader_offsets(
    leaders: LeaderEndPoint, replica_id: int, state: PartitionFetchState, timeout_ms: int
) -> tuple[int, int]:
    """Return the start and the end offset of the leader's log. Raises KafkaError."""
    start, end = [
        await _list_offset(leaders, replica_id, state, timestamp, timeout_ms) for timestamp in (EARLIEST, LATEST)
    ]
    return start, end


async def _list_offset(
    leaders: LeaderEndPoint, replica_id: int, state: PartitionFetchState, timestamp: int, timeout_ms: int
) -> int:
    row = ListOffsetsPartition(
        partition_index=state.key[1], current_leader_epoch=state.leader_epoch, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=replica_id, topics=[ListOffsetsTopic(name=state.partition.tp.topic, partitions=[row])]
    )
    response = await leaders.list_offsets(state.leader_id, request, timeout_ms)
    result = response.topics[0].partitions[0]
    if result.error_code:
        raise KafkaError(known_error(result.error_code))
    return result.offset
