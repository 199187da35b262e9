"""What brokers report to the controller: their logs for the recovery of partitions, their disks for self-healing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.interbroker.peers import PeerUnavailable
from kbroker.metadata.reassignments.healing_states import BrokerDisk
from kbroker.metadata.recovery.log_recovery import ReplicaLog
from protocol.errors import ErrorCode
from protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from protocol.messages.k10021_describe_replica_logs import (
    DescribeReplicaLogsRequest,
    DescribeReplicaLogsRequestTopic,
    DescribeReplicaLogsResponse,
)

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers
    from protocol.schema.message import Message

DESCRIBE_REPLICA_LOGS_VERSION = 0
DESCRIBE_LOG_DIRS_VERSION = 5
LOGS_TIMEOUT_MS = 3_000
DISKS_TIMEOUT_MS = 5_000
# A request of this many partitions takes some milliseconds.
MAX_PARTITIONS = 1_000

Key = tuple[bytes, int]
Logs = dict[Key, ReplicaLog | None]
ServeLocally = Callable[["Message", int], Awaitable["Message"]]


async def read_replica_logs(
    brokers: Collection[int], keys: Sequence[Key], node_id: int, peers: Peers | None, serve_locally: ServeLocally
) -> dict[int, Logs]:
    """Return the logs of partitions on the brokers that respond, by id: see LogRecoveryManager.

    `serve_locally` handles the requests of this broker; `peers` is None if it is alone.
    """
    requests = [_request(keys[first : first + MAX_PARTITIONS]) for first in range(0, len(keys), MAX_PARTITIONS)]
    responses = await _ask_each(
        brokers, requests, DESCRIBE_REPLICA_LOGS_VERSION, LOGS_TIMEOUT_MS, node_id, peers, serve_locally
    )
    return {
        broker_id: {key: log for part in parts for key, log in _logs_of(part).items()}
        for broker_id, parts in responses.items()
    }


async def read_disks(
    brokers: Collection[int], node_id: int, peers: Peers, serve_locally: ServeLocally
) -> dict[int, BrokerDisk]:
    """Return the disks of the brokers that respond, by id. `serve_locally` handles the request of this broker."""
    requests = [DescribeLogDirsRequest(topics=None)]
    responses = await _ask_each(
        brokers, requests, DESCRIBE_LOG_DIRS_VERSION, DISKS_TIMEOUT_MS, node_id, peers, serve_locally
    )
    return {id: disk for id, (response,) in responses.items() if (disk := disk_of(response)) is not None}


async def _ask_each(
    brokers: Collection[int],
    requests: Sequence[Message],
    version: int,
    timeout_ms: int,
    node_id: int,
    peers: Peers | None,
    serve_locally: ServeLocally,
) -> dict[int, list[Any]]:
    """Return the responses of the brokers that respond to all requests, by id."""

    async def ask(broker_id: int) -> list[Message] | None:
        responses = []
        for request in requests:
            if broker_id == node_id:
                responses.append(await serve_locally(request, version))
            elif peers is None:
                return None
            else:
                try:
                    responses.append(await peers.request(broker_id, request, version, timeout_ms=timeout_ms))
                except PeerUnavailable:
                    return None
        return responses

    ids = sorted(brokers)
    found = await asyncio.gather(*map(ask, ids))
    return {broker_id: responses for broker_id, responses in zip(ids, found, strict=True) if responses is not None}


def _request(keys: Sequence[Key]) -> DescribeReplicaLogsRequest:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    rows = [DescribeReplicaLogsRequestTopic(topic_id=id, partitions=indexes) for id, indexes in topics.items()]
    return DescribeReplicaLogsRequest(topics=rows)


def _logs_of(response: DescribeReplicaLogsResponse) -> Logs:
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


def disk_of(response: DescribeLogDirsResponse) -> BrokerDisk | None:
    """Return the disk of a broker, which has one log directory; None if it has failed."""
    for result in response.results:
        if not result.error_code:
            sizes = {
                (topic.name, row.partition_index): row.partition_size
                for topic in result.topics
                for row in topic.partitions
            }
            total, free = (value if value >= 0 else None for value in (result.total_bytes, result.usable_bytes))
            return BrokerDisk(sizes, total, free, result.is_cordoned)
    return None
