"""RemovePartitions (key 10010), version 0: remove the highest partitions of a topic. Kafka has no such API.

- Only empty partitions are removed. The steps, and why no record is lost, are in metadata/topics/remove_partitions.py.
- Producers get NOT_LEADER_OR_FOLLOWER meanwhile, for less than a second, and retry. For a partition that is gone they
  get UNKNOWN_TOPIC_OR_PARTITION, and refresh their metadata.
- INVALID_PARTITIONS: a partition has records, or the topic has no more than `partition_count`.
- ApiVersions does not list it, so only kbroker's command line sends it.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.topics.remove_partitions import ClosingPartitions
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

# The first version in which a leader whose high watermark is still unknown refuses with a code of its own.
LIST_OFFSETS_VERSION = 5
EARLIEST, LATEST = -2, -1
# How long the leaders may take to load the new leader epoch, in seconds, and how often they are asked.
MAX_WAIT_S, RETRY_BACKOFF_S = 10.0, 0.1
# How many partitions an error message names.
MAX_NAMED = 5


async def handle(
    services: Services, context: RequestContext, request: RemovePartitionsRequest
) -> RemovePartitionsResponse:
    try:
        await _remove(services, request.topic_name, request.partition_count)
    except KafkaError as error:
        return RemovePartitionsResponse(error_code=error.code, error_message=error.message)
    return RemovePartitionsResponse()


async def _remove(services: Services, name: str, count: int) -> None:
    controller = services.controller
    closing = await controller.close_partitions(name, count)
    try:
        _check_empty(closing, await _offsets_of_all(services, closing))
        await controller.remove_partitions(closing)
    finally:
        # Those that could not be removed; also if the outcome of their removal is unknown.
        await controller.reopen_partitions(closing.topic_id)


def _check_empty(closing: ClosingPartitions, offsets: dict[int, tuple[int, int]]) -> None:
    """Raise KafkaError if a partition has records."""
    filled = [(index, *range_) for index, range_ in sorted(offsets.items()) if range_[0] != range_[1]]
    if filled:
        named = ", ".join(f"{index} (offsets {start} to {end - 1})" for index, start, end in filled[:MAX_NAMED])
        others = f" and {len(filled) - MAX_NAMED} more" if len(filled) > MAX_NAMED else ""
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Only empty partitions can be removed. These partitions of {closing.name} have records: {named}{others}. "
            "Stop their producers, then wait until retention has deleted the records, or delete them.",
        )


async def _offsets_of_all(services: Services, closing: ClosingPartitions) -> dict[int, tuple[int, int]]:
    """Return the log start offset and the end offset of each partition, as its leader has them. Raises KafkaError."""
    by_leader: dict[int, list[int]] = {}
    for index, (leader, _) in closing.leaders.items():
        by_leader.setdefault(leader, []).append(index)
    offsets: dict[int, tuple[int, int]] = {}
    for leader, indexes in by_leader.items():
        if leader == services.node_id:
            offsets |= {index: _local_offsets(services, closing, index) for index in indexes}
        else:
            start = await _peer_offsets(services, closing, leader, indexes, EARLIEST)
            end = await _peer_offsets(services, closing, leader, indexes, LATEST)
            offsets |= {index: (start[index], end[index]) for index in indexes}
    return offsets


def _local_offsets(services: Services, closing: ClosingPartitions, index: int) -> tuple[int, int]:
    partition = services.replicas.leader(closing.topic_id, index)
    partition.check_leader(closing.leaders[index][1])
    return partition.log.log_start_offset, partition.log.log_end_offset


async def _peer_offsets(
    services: Services, closing: ClosingPartitions, leader: int, indexes: list[int], timestamp: int
) -> dict[int, int]:
    """Return an offset of each partition that a peer leads. Raises KafkaError.

    The peer responds for the leader epoch that closes the partition only, so it has closed it. The latest offset is its
    log end offset: it is refused until the high watermark has reached the start of the epoch, and nothing is appended
    since.
    """
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=closing.name,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=closing.leaders[index][1], timestamp=timestamp
                    )
                    for index in indexes
                ],
            )
        ]
    )
    assert services.peers is not None
    loop = services.environment.loop
    deadline_s = loop.time() + MAX_WAIT_S
    while True:
        timeout_ms = services.config.request_timeout_ms
        response = await services.peers.request(leader, request, LIST_OFFSETS_VERSION, timeout_ms=timeout_ms)
        assert isinstance(response, ListOffsetsResponse)
        rows = [row for topic in response.topics for row in topic.partitions]
        failed = [row for row in rows if row.error_code]
        if not failed and len(rows) == len(indexes):
            return {row.partition_index: row.offset for row in rows}
        if loop.time() > deadline_s:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"Broker {leader} did not report whether its partitions are empty."
            )
        await services.environment.sleep(RETRY_BACKOFF_S)
