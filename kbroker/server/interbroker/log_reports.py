"""What brokers report of their logs, for the recovery of partitions: DescribeReplicaLogs to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, cast

from kbroker.interbroker.peers import PeerUnavailable
from kbroker.metadata.recovery.log_recovery import ReplicaLog
from protocol.errors import ErrorCode
from protocol.messages.k10021_describe_replica_logs import (
    DescribeReplicaLogsRequest,
    DescribeReplicaLogsRequestTopic,
    DescribeReplicaLogsResponse,
)

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers
    from protocol.schema.message import Message

VERSION = 0
TIMEOUT_MS = 3_000
# A request of this many partitions takes some milliseconds.
MAX_PARTITIONS = 1_000

Key = tuple[bytes, int]
Logs = dict[Key, ReplicaLog | None]


async def read_replica_logs(
    brokers: Collection[int],
    keys: Sequence[Key],
    node_id: int,
    peers: Peers | None,
    serve_locally: Callable[[Message, int], Awaitable[Message]],
) -> dict[int, Logs]:
    """Return the logs of partitions on the brokers that respond, by id: see LogRecoveryManager.

    `serve_locally` handles the requests of this broker; `peers` is None if it is alone.
    """
    requests = [_request(keys[first : first + MAX_PARTITIONS]) for first in range(0, len(keys), MAX_PARTITIONS)]

    async def read(broker_id: int) -> Logs | None:
        logs: Logs = {}
        for request in requests:
            if broker_id == node_id:
                response = await serve_locally(request, VERSION)
            elif peers is None:
                return None
            else:
                try:
                    response = await peers.request(broker_id, request, VERSION, timeout_ms=TIMEOUT_MS)
                except PeerUnavailable:
                    return None
            logs |= logs_of(cast(DescribeReplicaLogsResponse, response))
        return logs

    ids = sorted(brokers)
    found = await asyncio.gather(*map(read, ids))
    return {broker_id: logs for broker_id, logs in zip(ids, found, strict=True) if logs is not None}


def _request(keys: Sequence[Key]) -> DescribeReplicaLogsRequest:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    rows = [DescribeReplicaLogsRequestTopic(topic_id=id, partitions=indexes) for id, indexes in topics.items()]
    return DescribeReplicaLogsRequest(topics=rows)


def logs_of(response: DescribeReplicaLogsResponse) -> Logs:
    """Return the logs of a response: None if there is none. Those that cannot be read are missing."""
    logs: Logs = {}
    for topic in response.topics:
        for row in topic.partitions:
            if not row.error_code:
                log = ReplicaLog(row.leader_epoch, row.log_end_offset, row.log_start_offset)
                logs[topic.topic_id, row.partition_index] = log
            elif row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                logs[topic.topic_id, row.partition_index] = None
    return logs
