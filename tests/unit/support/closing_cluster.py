"""A topic "t" of a SimulatedCluster whose partitions close: producers, consumers, and RemovePartitions."""

import asyncio
from typing import Any

from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse
from protocol.records.batch import build_batch, iter_batch_records, iter_headers
from tests.unit.support.simulated_cluster import SimulatedCluster

# Outcomes of RemovePartitions.
REMOVED, CLOSING, REOPENED = 0, 1, 2


async def alter(s: SimulatedCluster, count: int, node_id: int = 1) -> RemovePartitionsResponse:
    request = RemovePartitionsRequest(topic_name="t", partition_count=count)
    response: RemovePartitionsResponse = await s.client(
        node_id, lambda client: client.request(request, 0, RemovePartitionsResponse)
    )
    return response


async def closing(s: SimulatedCluster, count: int) -> None:
    response = await alter(s, count)
    assert (response.error_code, response.outcome) == (0, CLOSING), response


def idempotent(value: bytes, sequence: int, **fields: Any) -> bytearray:
    return build_batch([(0, b"k", value, [])], producer_id=7, producer_epoch=0, base_sequence=sequence, **fields)


async def produce(s: SimulatedCluster, records: bytes, index: int) -> None:
    """Produce until it is acknowledged, as a client with retries does."""
    async with asyncio.timeout(120):
        while True:
            leader = leader_of(s, index)
            if leader is not None:
                response = await s.client(leader, lambda client: client.produce("t", records, index))
                if response.error_code == 0:
                    return
            await asyncio.sleep(0.1)


def leader_of(s: SimulatedCluster, index: int) -> int | None:
    for node_id, machine in s.machines.items():
        if machine.services is not None:
            partition = machine.services.replicas.get("t", index)
            if partition is not None and partition.is_leader:
                return node_id
    return None


async def visible(s: SimulatedCluster, index: int) -> list[bytes]:
    """Return the values that a consumer reads from the beginning to the end."""
    values: list[bytes] = []
    await s.until(lambda: leader_of(s, index) is not None, 60)
    leader = leader_of(s, index)
    assert leader is not None
    partition = s.replica(leader, index=index)
    position = partition.log.log_start_offset
    while position < partition.high_watermark:
        data = await s.client(
            leader, lambda client, at=position: client.fetch_partition("t", at, partition=index, max_wait_ms=0)
        )
        assert data.error_code == 0
        content = bytes(data.records or b"")
        for pos, header in iter_headers(content):
            if header.next_offset > position:
                position = header.next_offset
            if not header.is_control:
                rows = iter_batch_records(content[pos : pos + header.size], header)
                values += [row.value or b"" for row in rows]
    return values


async def until_forwarded(s: SimulatedCluster, index: int, values: list[bytes]) -> None:
    async with asyncio.timeout(60):
        while await visible(s, index) != values:
            await asyncio.sleep(0.2)


async def until_applied(s: SimulatedCluster, index: int, *, is_active: bool) -> None:
    """Wait until the leader of a partition knows whether it is closing."""

    def is_applied() -> bool:
        leader = leader_of(s, index)
        if leader is None:
            return False
        partition = s.replica(leader, index=index)
        forwarding = partition.forwarding
        return forwarding is not None and forwarding.is_active == is_active and not partition.is_closing

    await s.until(is_applied, 60)
