"""A whole broker whose clients commit offsets in transactions: it is killed, loses its power, compacts its log."""

import asyncio
from typing import Any

import pytest

from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k16_list_groups import ListGroupsRequest, ListGroupsResponse
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k26_end_txn import EndTxnRequest, EndTxnResponse
from protocol.messages.k28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.messages.k42_delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import DAY, MINUTE, Machine
from tests.unit.support.simulated_broker import story as any_story

MIB = 1 << 20
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def story(function: Any = None, **configs: object) -> Any:
    """Clients and transactions stay for days."""
    configs |= {"connections_max_idle_ms": 1 << 40, "transaction_max_timeout_ms": 1 << 30}
    return any_story(function, **configs, transaction_state_log_num_partitions=1)


def size(m: Machine) -> int:
    return sum(segment.size for segment in m.partition(GROUP_METADATA_TOPIC).log.segments)


class User:
    """One client of group g, or of another, and its producers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.producers: dict[str, tuple[int, int]] = {}

    async def find(self) -> None:
        """Makes the coordinators' topics."""
        for kind in (0, 1):
            while True:
                request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["g"])
                found = await self.client.request(request, 4, FindCoordinatorResponse)
                if found.coordinators[0].error_code == 0:
                    break
                await asyncio.sleep(0.1)

    async def begin(self, name: str) -> None:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1 << 30)
        while True:
            found = await self.client.request(request, 5, InitProducerIdResponse)
            if found.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
            await asyncio.sleep(0.1)
        assert found.error_code == 0
        self.producers[name] = (found.producer_id, found.producer_epoch)

    async def write(self, name: str, partition: int, offset: int) -> None:
        """Commit in the transaction; which begins with it."""
        if name not in self.producers:
            await self.begin(name)
        wanted = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        producer_id, epoch = self.producers[name]
        request = TxnOffsetCommitRequest(
            transactional_id=name,
            group_id="g",
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[wanted])],
        )
        while True:
            found = await self.client.request(request, 5, TxnOffsetCommitResponse)
            code = found.topics[0].partitions[0].error_code
            if code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                break
            await asyncio.sleep(0.02)
        assert code == ErrorCode.NONE

    async def end(self, name: str, *, committed: bool = True) -> None:
        producer_id, epoch = self.producers[name]
        request = EndTxnRequest(
            transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=committed
        )
        found = await self.client.request(request, 5, EndTxnResponse)
        assert found.error_code == 0
        self.producers[name] = (found.producer_id, found.producer_epoch)

    async def commit(self, partition: int, offset: int, *, group: str = "g", more: int = 0) -> None:
        """As anybody may, with metadata of some size."""
        wanted = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata="." * more
        )
        topics = [OffsetCommitRequestTopic(name="t", partitions=[wanted])]
        found = await self.client.request(OffsetCommitRequest(group_id=group, topics=topics), 9, OffsetCommitResponse)
        assert found.topics[0].partitions[0].error_code == 0

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
        found = group.topics[0].partitions
        return [ErrorCode(one.error_code) if one.error_code else one.committed_offset for one in found]

    async def settled(self) -> list[int | ErrorCode]:
        """When no marker is on its way."""
        while UNSTABLE in (found := await self.offsets()):
            await asyncio.sleep(0.1)
        return found

    async def groups(self) -> list[str]:
        found = await self.client.request(ListGroupsRequest(), 5, ListGroupsResponse)
        return sorted(group.group_id for group in found.groups)


async def user(m: Machine, known: User | None = None) -> User:
    """A client that goes on with the producers of another."""
    made = User(await m.client())
    if known is not None:
        made.producers = known.producers
    else:
        await made.client.create_topic("t", 3)
        await made.find()
    return made


@story
@pytest.mark.parametrize("death", ["stop", "kill", "power"])
async def test_open_transactions_of_groups_survive_the_broker(m: Machine, death: str) -> None:
    one = await user(m)
    await one.commit(0, 1)
    await one.write("T", 0, 5)
    await one.write("U", 1, 6)
    await one.write("V", 2, 7)
    await one.end("V")
    assert await one.offsets() == [UNSTABLE, UNSTABLE, 7]
    if death == "power":
        for partition in m.broker.services.replicas.partitions.values():
            m.broker.services.replicas.upkeep.request_flush(partition)
        await asyncio.sleep(1)
    if death == "stop":
        await m.restart()
    else:
        await m.crash(power=death == "power")
        await m.start()
    two = await user(m, one)
    assert await two.offsets() == [UNSTABLE, UNSTABLE, 7]
    assert await two.offsets(stable=False) == [1, -1, 7]
    await two.write("T", 2, 8)
    await two.end("T")
    await two.end("U", committed=False)
    assert await two.settled() == [5, -1, 8]


@story
async def test_a_decision_that_was_made_before_a_kill_reaches_the_group_after_it(m: Machine) -> None:
    one = await user(m)
    await one.write("T", 0, 5)
    # Killed as soon as the answer is there: the marker may or may not have been written.
    await one.end("T")
    await m.crash()
    await m.start()
    two = await user(m, one)
    assert await two.settled() == [5, -1, -1]
    await two.write("T", 0, 6)
    await two.end("T", committed=False)
    assert await two.settled() == [5, -1, -1]


async def fill(one: User, m: Machine) -> None:
    """Close a segment of the log."""
    log = m.partition(GROUP_METADATA_TOPIC).log
    before = len(log.segments)
    number = 0
    while len(log.segments) == before:
        number += 1
        await one.commit(0, number, group="filler", more=4096)


@story(offsets_topic_segment_bytes=MIB, log_cleaner_min_cleanable_ratio=0)
async def test_compaction_keeps_what_transactions_mean(m: Machine) -> None:
    one = await user(m)
    await one.commit(0, 1)
    await one.commit(1, 2)
    await one.write("T", 0, 5)
    await one.end("T")
    await one.write("U", 1, 6)
    await one.end("U", committed=False)
    await fill(one, m)
    await one.write("V", 2, 7)
    await one.write("T", 0, 8)
    await one.commit(0, 9)
    await one.end("T")
    await fill(one, m)
    await fill(one, m)
    before = size(m)
    await asyncio.sleep(MINUTE)
    assert m.processes.began["run"] > 0
    assert size(m) < before
    await m.crash()
    await m.start()
    two = await user(m, one)
    assert await two.offsets() == [9, 2, UNSTABLE]
    await two.end("V")
    assert await two.settled() == [9, 2, 7]
    # Nothing holds the cleaner back now, and the last of it goes in its time.
    await fill(two, m)
    await asyncio.sleep(2 * DAY)
    await fill(two, m)
    await asyncio.sleep(MINUTE)
    assert size(m) < 3 * MIB
    await m.restart()
    assert await (await user(m, one)).offsets() == [9, 2, 7]


@story(offsets_topic_segment_bytes=MIB, log_cleaner_min_cleanable_ratio=0)
async def test_what_was_deleted_does_not_come_back_when_its_tombstones_are_gone(m: Machine) -> None:
    one = await user(m)
    await one.write("T", 0, 5)
    await one.end("T")
    await one.write("T", 1, 6)
    assert await one.offsets() == [5, UNSTABLE, -1]
    request = DeleteGroupsRequest(groups_names=["g"])
    (deleted,) = (await one.client.request(request, 2, DeleteGroupsResponse)).results
    assert deleted.error_code == 0
    await one.end("T")
    assert await one.settled() == [-1, -1, -1]
    for _ in range(4):
        await fill(one, m)
        await asyncio.sleep(1.5 * DAY)
    await m.crash()
    await m.start()
    two = await user(m, one)
    assert await two.offsets() == [-1, -1, -1]
    assert await two.groups() == ["filler"]
