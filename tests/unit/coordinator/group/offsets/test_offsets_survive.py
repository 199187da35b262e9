"""Transactional offsets through kills, power losses and compaction of a whole broker."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k15_groups import ListGroupsRequest, ListGroupsResponse
from protocol.messages.k42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import HOUR, MINUTE, Machine
from tests.unit.support.simulated_broker import broker_test as any_broker_test
from tests.unit.support.transactional_producer import Producer

MIB = 1 << 20
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
# Tombstones and markers are kept for an hour instead of a day.
COMPACTED = {
    "offsets_topic_segment_bytes": MIB,
    "log_cleaner_min_cleanable_ratio": 0,
    "log_cleaner_delete_retention_ms": 3_600_000,
}


def broker_test(function: Any = None, **configs: object) -> Any:
    """Make a test whose clients and transactions live for days."""
    configs |= {"connections_max_idle_ms": 1 << 40, "transaction_max_timeout_ms": 1 << 30}
    return any_broker_test(function, **configs, transaction_state_log_num_partitions=1)


def log_size(m: Machine) -> int:
    return sum(segment.size for segment in m.partition(GROUP_METADATA_TOPIC).log.segments)


class GroupClient:
    """A client of the group "g", with its transactional producers by transactional id."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.producers: dict[str, Producer] = {}

    async def create_internal_topics(self) -> None:
        for kind in (0, 1):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"])
            while (await self.client.request(request, 4, FindCoordinatorResponse)).coordinators[0].error_code:
                await asyncio.sleep(0.1)

    async def commit_in_transaction(self, name: str, partition: int, offset: int) -> None:
        """Commit an offset in a transaction, which begins with it."""
        if name not in self.producers:
            self.producers[name] = Producer(self.client, name)
            while code := await self.producers[name].init(timeout_ms=1 << 30):
                assert code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
                await asyncio.sleep(0.1)
        committed = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id="g",
            producer_id=self.producers[name].producer_id,
            producer_epoch=self.producers[name].epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[committed])],
        )
        while True:
            response = await self.client.request(request, 5, TxnOffsetCommitResponse)
            code = response.topics[0].partitions[0].error_code
            if code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                break
            await asyncio.sleep(0.02)
        assert code == ErrorCode.NONE

    async def end(self, name: str, *, committed: bool = True) -> None:
        assert await self.producers[name].end(committed) == 0

    async def commit(
        self, partition: int, offset: int, *, group: str = "g", metadata_bytes: int = 0, times: int = 1
    ) -> None:
        """Commit an offset without a transaction, some times in one request."""
        committed = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="." * metadata_bytes
        )
        topics = [OffsetCommitRequestTopic(name="t", partitions=[committed] * times)]
        response = await self.client.request(
            OffsetCommitRequest(group_id=group, topics=topics), 9, OffsetCommitResponse
        )
        assert response.topics[0].partitions[0].error_code == 0

    async def offsets(self, *, stable: bool = True) -> list[int | ErrorCode]:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1, 2])]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
        request = OffsetFetchRequest(groups=groups, require_stable=stable)
        while True:
            (group,) = (await self.client.request(request, 9, OffsetFetchResponse)).groups
            if group.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await asyncio.sleep(0.1)
        assert group.error_code == 0
        return [
            ErrorCode(partition.error_code) if partition.error_code else partition.committed_offset
            for partition in group.topics[0].partitions
        ]

    async def stable_offsets(self) -> list[int | ErrorCode]:
        """Return the offsets once all transactions have their markers."""
        while UNSTABLE in (offsets := await self.offsets()):
            await asyncio.sleep(0.1)
        return offsets

    async def groups(self) -> list[str]:
        response = await self.client.request(ListGroupsRequest(), 5, ListGroupsResponse)
        return sorted(group.group_id for group in response.groups)


async def group_client(m: Machine, predecessor: GroupClient | None = None) -> GroupClient:
    """Return a client. With a predecessor it continues with its producers."""
    client = GroupClient(await m.client())
    if predecessor is not None:
        client.producers = {name: replace(old, client=client.client) for name, old in predecessor.producers.items()}
    else:
        await client.client.create_topic("t", 3)
        await client.create_internal_topics()
    return client


@broker_test
@pytest.mark.parametrize("death", ["stop", "kill", "power"])
async def test_open_transactions_of_groups_survive_the_broker(m: Machine, death: str) -> None:
    client = await group_client(m)
    await client.commit(0, 1)
    await client.commit_in_transaction("T", 0, 5)
    await client.commit_in_transaction("U", 1, 6)
    await client.commit_in_transaction("V", 2, 7)
    await client.end("V")
    assert await client.offsets() == [UNSTABLE, UNSTABLE, 7]
    if death == "power":
        for partition in m.broker.services.replicas.partitions.values():
            m.broker.services.replicas.maintenance.flusher.request_flush(partition)
        await asyncio.sleep(1)
    if death == "stop":
        await m.restart()
    else:
        await m.crash(power=death == "power")
        await m.start()
    two = await group_client(m, client)
    assert await two.offsets() == [UNSTABLE, UNSTABLE, 7]
    assert await two.offsets(stable=False) == [1, -1, 7]
    await two.commit_in_transaction("T", 2, 8)
    await two.end("T")
    await two.end("U", committed=False)
    assert await two.stable_offsets() == [5, -1, 8]


@broker_test
async def test_a_transaction_that_was_committed_before_a_kill_counts_after_it(m: Machine) -> None:
    client = await group_client(m)
    await client.commit_in_transaction("T", 0, 5)
    # Killed at once after the response: the marker may or may not have been written.
    await client.end("T")
    await m.crash()
    await m.start()
    two = await group_client(m, client)
    assert await two.stable_offsets() == [5, -1, -1]
    await two.commit_in_transaction("T", 0, 6)
    await two.end("T", committed=False)
    assert await two.stable_offsets() == [5, -1, -1]


async def fill(client: GroupClient, m: Machine) -> None:
    """Write until a segment of the log is rolled."""
    log = m.partition(GROUP_METADATA_TOPIC).log
    before = len(log.segments)
    offset = 0
    while len(log.segments) == before:
        offset += 1
        await client.commit(0, offset, group="filler", metadata_bytes=4096, times=50)


@broker_test(**COMPACTED)
async def test_compaction_keeps_the_outcome_of_transactions(m: Machine) -> None:
    client = await group_client(m)
    await client.commit(0, 1)
    await client.commit(1, 2)
    await client.commit_in_transaction("T", 0, 5)
    await client.end("T")
    await client.commit_in_transaction("U", 1, 6)
    await client.end("U", committed=False)
    await fill(client, m)
    await client.commit_in_transaction("V", 2, 7)
    await client.commit_in_transaction("T", 0, 8)
    await client.commit(0, 9)
    await client.end("T")
    await fill(client, m)
    await fill(client, m)
    before = log_size(m)
    await asyncio.sleep(MINUTE)
    assert m.processes.started["run"] > 0
    assert log_size(m) < before
    await m.crash()
    await m.start()
    two = await group_client(m, client)
    assert await two.offsets() == [9, 2, UNSTABLE]
    await two.end("V")
    assert await two.stable_offsets() == [9, 2, 7]
    # No open transaction holds the cleaner back any more.
    await fill(two, m)
    await asyncio.sleep(2 * HOUR)
    await fill(two, m)
    await asyncio.sleep(MINUTE)
    assert log_size(m) < 3 * MIB
    await m.restart()
    assert await (await group_client(m, client)).offsets() == [9, 2, 7]


@broker_test(**COMPACTED)
async def test_deleted_offsets_do_not_come_back_after_their_tombstones_are_compacted(m: Machine) -> None:
    client = await group_client(m)
    await client.commit_in_transaction("T", 0, 5)
    await client.end("T")
    await client.commit_in_transaction("T", 1, 6)
    assert await client.offsets() == [5, UNSTABLE, -1]
    request = DeleteGroupsRequest(groups_names=["g"])
    (deleted,) = (await client.client.request(request, 2, DeleteGroupsResponse)).results
    assert deleted.error_code == 0
    await client.end("T")
    assert await client.stable_offsets() == [-1, -1, -1]
    for _ in range(4):
        await fill(client, m)
        await asyncio.sleep(1.5 * HOUR)
    await m.crash()
    await m.start()
    two = await group_client(m, client)
    assert await two.offsets() == [-1, -1, -1]
    assert await two.groups() == ["filler"]
