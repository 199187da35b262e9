"""Three brokers with a topic of a message queue's feature: leaders end or are cut off, or partitions close."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kbroker.common import NO_LEADER, TopicPartition
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceResponse
from protocol.messages.k01_fetch import FetchResponse, PartitionData
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse
from protocol.records.batch import build_batch, iter_batch_records, iter_headers
from protocol.records.record import Record
from tests.unit.support.client import Client
from tests.unit.support.log_lab import content
from tests.unit.support.simulated_cluster import SimulatedCluster

# Errors of a batch while the leader changes: it was not stored, or its retry is a duplicate.
RETRIABLE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)
# How long the leader waits for the followers, and how long a client waits for the leader.
PRODUCE_TIMEOUT_MS, REQUEST_TIMEOUT_S = 2000, 5.0


class QueueCluster(SimulatedCluster):
    """A cluster whose topic is t, with one partition."""

    def now_ms(self, node_id: int) -> int:
        return self.broker(node_id).environment.clock.now_ms()

    def alive(self) -> int:
        """A broker that runs."""
        return next(node_id for node_id, machine in self.machines.items() if machine.services is not None)

    async def leader(self, other_than: int = NO_LEADER, seen_by: int | None = None) -> int:
        """Wait for a leader, and return it."""

        def known() -> int:
            return self.registration(seen_by or self.alive()).leader

        await self.until(lambda: known() not in (NO_LEADER, other_than), 60)
        return known()

    async def until_in_sync(self, *replicas: int) -> None:
        def are_in_sync() -> bool:
            return sorted(self.registration(self.alive()).isr) == sorted(replicas)

        await self.until(are_in_sync, 90)

    async def until_equal(self, leader: int) -> None:
        """Wait until all replicas have the same committed log."""
        replicas = self.registration(leader).replicas

        def are_equal() -> bool:
            partition = self.replica(leader)
            is_committed = partition.high_watermark == partition.log.log_end_offset
            return is_committed and len({content(self.replica(node_id).log) for node_id in replicas}) == 1

        await self.until(are_equal, 60)

    def end_transaction(self, leader: int, producer_id: int, committed: bool) -> None:
        """Write the marker of a producer's transaction to the partition."""
        marker = TransactionMarker(
            producer_id=producer_id, producer_epoch=1, committed=committed, coordinator_epoch=0, transaction_version=2
        )
        replicas = self.broker(leader).services.replicas
        self.machines[leader].loop.call_soon(replicas.append_marker, TopicPartition("t", 0), marker, lambda code: None)

    # Faults.

    def isolate(self, node_id: int) -> None:
        """Cut a broker off from the others and from the coordination service, but not from clients."""
        for other in self.machines:
            if other != node_id:
                self.loop.network.faults.partition(f"b{node_id}", f"b{other}")
        self.service.cut(f"b{node_id}")

    def heal(self, node_id: int) -> None:
        self.loop.network.faults.heal_all()
        self.service.heal(f"b{node_id}")

    async def make_only_replica_in_sync(self, node_id: int) -> None:
        """Let a broker lead, by killing the others."""
        for other in self.machines:
            if other != node_id:
                self.machines[other].kill()
        await self.until(lambda: self.registration(node_id).leader == node_id, 60)

    # Clients.

    async def produce_with_retries(self, build: Callable[[int], bytearray], seen_by: int | None = None) -> int:
        """Produce a batch with acks=all, and retry as clients do while the leader changes. Returns the base offset.

        `build` returns the batch for the current time in milliseconds. `seen_by`: the broker that names the leader.
        """
        while True:
            leader = await self.leader(seen_by=seen_by)
            records = build(self.now_ms(seen_by or self.alive()))
            process = self.machines[leader].services
            try:
                response = await self.client(leader, partial(_produce, records=records))
            except TimeoutError:
                # A machine without power closes no connection. A broker that runs must respond.
                assert process is None or self.machines[leader].services is not process, "no response"
                continue
            except OSError:
                await asyncio.sleep(0.1)
                continue
            if response.error_code == 0:
                return int(response.base_offset)
            assert response.error_code in RETRIABLE, response
            await asyncio.sleep(0.1)

    async def read(self, node_id: int, isolation_level: int = 0, *, from_start: bool = False) -> list[Record]:
        """Read the partition from a replica, as a consumer does. `from_start`: records may have been deleted."""
        records: list[Record] = []
        position = self.replica(node_id).log.log_start_offset if from_start else 0
        while True:
            data = await self.client(node_id, partial(_fetch, offset=position, isolation_level=isolation_level))
            assert data.error_code == 0, data
            before = position
            body = bytes(data.records or b"")
            aborted = [row.producer_id for row in data.aborted_transactions or ()]
            for pos, header in iter_headers(body):
                position = header.next_offset
                if not header.is_control and header.producer_id not in aborted:
                    records += iter_batch_records(body[pos : pos + header.size], header)
            if position == before:
                return records


async def _produce(client: Client, records: bytearray) -> PartitionProduceResponse:
    """Produce with acks=all. Raises TimeoutError."""
    producing = client.produce("t", records, timeout_ms=PRODUCE_TIMEOUT_MS)
    return await asyncio.wait_for(producing, REQUEST_TIMEOUT_S)


async def _fetch(client: Client, offset: int, isolation_level: int) -> PartitionData:
    """Fetch the partition as a consumer with client.rack does, which followers serve, too."""
    request = client.fetch_request({("t", 0): offset}, isolation_level=isolation_level)
    request.rack_id = "rack"
    response = await client.request(request, 12, FetchResponse)
    return response.responses[0].partitions[0]


End = Callable[[Any, int], Awaitable[None]]


async def kill(s: SimulatedCluster, node_id: int) -> None:
    s.machines[node_id].kill()


async def power_off(s: SimulatedCluster, node_id: int) -> None:
    s.machines[node_id].power_off()


async def stop(s: SimulatedCluster, node_id: int) -> None:
    await s.machines[node_id].stop()


# A topic "t" whose partitions close.

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
