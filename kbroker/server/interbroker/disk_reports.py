"""What brokers report of their disks, for self-healing: DescribeLogDirs to each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, cast

from kbroker.interbroker.peers import PeerUnavailable
from kbroker.metadata.reassignments.healing_states import BrokerDisk
from protocol.messages.k35_describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers
    from protocol.schema.message import Message

DESCRIBE_LOG_DIRS_VERSION = 5
TIMEOUT_MS = 5_000


async def read_disks(
    brokers: Collection[int], node_id: int, peers: Peers, serve_locally: Callable[[Message, int], Awaitable[Message]]
) -> dict[int, BrokerDisk]:
    """Return the disks of the brokers that respond, by id. `serve_locally` handles the request of this broker."""

    async def read(broker_id: int) -> BrokerDisk | None:
        request = DescribeLogDirsRequest(topics=None)
        if broker_id == node_id:
            response = await serve_locally(request, DESCRIBE_LOG_DIRS_VERSION)
        else:
            try:
                response = await peers.request(broker_id, request, DESCRIBE_LOG_DIRS_VERSION, timeout_ms=TIMEOUT_MS)
            except PeerUnavailable:
                return None
        return disk_of(cast(DescribeLogDirsResponse, response))

    ids = sorted(brokers)
    found = await asyncio.gather(*map(read, ids))
    return {broker_id: disk for broker_id, disk in zip(ids, found, strict=True) if disk is not None}


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
