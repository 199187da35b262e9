"""Offset lookups: ListOffsets and OffsetForLeaderEpoch."""

from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.clients.connections.cluster import Cluster, UnavailableError
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST = -1, -2
CONSUMER = -1
NO_OFFSET = -1


class RefusedError(Exception):
    """The broker responded with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


async def list_offset(
    cluster: Cluster, tp: TopicPartition, timestamp: int, *, committed_only: bool = False
) -> tuple[int, int]:
    """Return (offset, leader epoch or -1) of the log start or end. Raises OSError, also for retriable errors."""
    connection = await cluster.leader(tp)
    partition = ListOffsetsPartition(partition_index=tp[1], timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=CONSUMER, topics=[ListOffsetsTopic(name=tp[0], partitions=[partition])], timeout_ms=5_000
    )
    if connection.version(ApiKey.LIST_OFFSETS) >= 2:
        request.isolation_level = int(committed_only)
    response = (await connection.request(request, ListOffsetsResponse)).topics[0].partitions[0]
    if response.error_code:
        cluster.forget_leader(tp)
        raise UnavailableError(ErrorCode(response.error_code).name)
    return response.offset, response.leader_epoch


async def epoch_end_offset(cluster: Cluster, tp: TopicPartition, leader_epoch: int, epoch: int) -> tuple[int, int]:
    """Return (epoch, end offset) of the largest epoch up to `epoch` in the leader's log, -1 for both if there is none.

    Raises OSError.
    """
    connection = await cluster.leader(tp)
    partition = OffsetForLeaderPartition(partition=tp[1], current_leader_epoch=leader_epoch, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=CONSUMER, topics=[OffsetForLeaderTopic(topic=tp[0], partitions=[partition])]
    )
    response = (await connection.request(request, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
    if response.error_code:
        cluster.forget_leader(tp)
        raise UnavailableError(ErrorCode(response.error_code).name)
    return response.leader_epoch, response.end_offset
