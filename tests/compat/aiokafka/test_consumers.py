"""Consumers of aiokafka: positions, commits, consumer groups."""

import time

import pytest
from aiokafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import OffsetOutOfRangeError

from tests.compat.aiokafka.helpers import eventually, in_loop, partitions, read, shared

HOUR_MS = 3600 * 1000


async def filled(clients, count, partition_count=1):
    name = await clients.topic(partition_count)
    sender = await clients.producer()
    for n in range(count):
        for partition in range(partition_count):
            await sender.send(name, str(n).encode(), partition=partition)
    await sender.flush()
    return name


@pytest.mark.feature("offsets")
@in_loop
async def test_seek_and_the_ends_of_a_partition(clients):
    tp = TopicPartition(await filled(clients, 30), 0)
    reader = await clients.consumer()
    reader.assign([tp])
    assert await reader.beginning_offsets([tp]) == {tp: 0}
    assert await reader.end_offsets([tp]) == {tp: 30}
    reader.seek(tp, 27)
    assert [r.offset for r in await read(reader, 3)] == [27, 28, 29]
    assert (await reader.position(tp), reader.highwater(tp), reader.last_stable_offset(tp)) == (30, 30, 30)
    await reader.seek_to_beginning(tp)
    assert len(await read(reader, 30)) == 30
    await reader.seek_to_end(tp)
    assert await reader.position(tp) == 30


@pytest.mark.feature("offsets")
@in_loop
async def test_a_paused_partition_delivers_nothing_until_it_is_resumed(clients):
    paused, free = partitions(await filled(clients, 20, 2), 2)
    reader = await clients.consumer()
    reader.assign([paused, free])
    reader.pause(paused)
    assert {r.partition for r in await read(reader, 20)} == {1}
    reader.resume(paused)
    assert {r.partition for r in await read(reader, 20)} == {0}


@pytest.mark.feature("offsets")
@in_loop
async def test_offsets_for_times(clients):
    tp = TopicPartition(await clients.topic(), 0)
    start = int(time.time() * 1000) - 10 * HOUR_MS
    sender = await clients.producer()
    for n in range(10):
        await sender.send_and_wait(tp.topic, b"v", partition=0, timestamp_ms=start + n * HOUR_MS)
    reader = await clients.consumer()
    reader.assign([tp])
    offset_and_time = (await reader.offsets_for_times({tp: start + 3 * HOUR_MS + 1}))[tp]
    assert (offset_and_time.offset, offset_and_time.timestamp) == (4, start + 4 * HOUR_MS)
    assert (await reader.offsets_for_times({tp: 0}))[tp].offset == 0
    assert (await reader.offsets_for_times({tp: start + 9 * HOUR_MS + 1}))[tp] is None


@pytest.mark.feature("offsets")
@in_loop
async def test_an_offset_out_of_range_is_an_error_or_a_reset(clients):
    tp = TopicPartition(await filled(clients, 5), 0)
    strict = await clients.consumer(auto_offset_reset="none")
    strict.assign([tp])
    strict.seek(tp, 1000)
    with pytest.raises(OffsetOutOfRangeError):
        await strict.getone()
    lenient = await clients.consumer()
    lenient.assign([tp])
    lenient.seek(tp, 1000)
    assert [r.offset for r in await read(lenient, 5)] == [0, 1, 2, 3, 4]


@pytest.mark.feature("commits")
@in_loop
async def test_commits_with_metadata_and_the_next_consumer(clients):
    name = await filled(clients, 20)
    tp = TopicPartition(name, 0)
    first = await clients.consumer(name, group_id=clients.group, enable_auto_commit=False)
    assert await first.committed(tp) is None
    assert len(await read(first, 20)) == 20
    await first.commit({tp: OffsetAndMetadata(8, "so far")})
    assert await first.committed(tp) == 8
    admin = await clients.admin()
    stored = await admin.list_consumer_group_offsets(clients.group)
    assert stored == {tp: OffsetAndMetadata(8, "so far")}
    await clients.stop_one(first)
    second = await clients.consumer(name, group_id=clients.group)
    assert [r.offset for r in await read(second, 12)] == list(range(8, 20))


@pytest.mark.feature("commits")
@in_loop
async def test_auto_commit(clients):
    name = await filled(clients, 10)
    tp = TopicPartition(name, 0)
    reader = await clients.consumer(name, group_id=clients.group, auto_commit_interval_ms=100)
    await read(reader, 10)

    async def committed() -> bool:
        return await reader.committed(tp) == 10

    await eventually(committed, "the position to be committed")


@pytest.mark.feature("consumer groups")
@pytest.mark.parametrize("assignor", [None, StickyPartitionAssignor])
@in_loop
async def test_members_join_and_leave_and_share_the_partitions(clients, assignor):
    name = await clients.topic(partitions=6)
    expected = set(partitions(name, 6))
    settings = {"partition_assignment_strategy": [assignor]} if assignor else {}
    members = []
    for count in (1, 2, 3):
        members.append(await clients.consumer(name, group_id=clients.group, **settings))
        await eventually(lambda: shared(members, expected), f"six partitions over {count} members")
    assert [len(m.assignment()) for m in members] == [2, 2, 2]
    sender = await clients.producer()
    for n in range(60):
        await sender.send_and_wait(name, str(n).encode(), partition=n % 6)
    values = [int(r.value) for member in members for r in await read(member, 20)]
    assert sorted(values) == list(range(60))
    for remaining in (2, 1):
        await clients.stop_one(members.pop(0))
        await eventually(lambda: shared(members, expected), f"six partitions over the {remaining} that stayed")


@pytest.mark.feature("consumer groups")
@in_loop
async def test_a_group_reads_topics_that_match_later(clients):
    first = await clients.topic()
    reader = await clients.consumer(group_id=clients.group, metadata_max_age_ms=300)
    reader.subscribe(pattern="^" + first.rsplit("-", 1)[0] + "-.*")
    await eventually(lambda: shared([reader], set(partitions(first, 1))), "the first topic")
    second = await clients.topic(partitions=2)
    expected = {*partitions(first, 1), *partitions(second, 2)}
    await eventually(lambda: shared([reader], expected), "both topics")


class Revocations(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.count = 0

    async def on_partitions_revoked(self, revoked):
        self.count += bool(revoked)

    async def on_partitions_assigned(self, assigned):
        pass


@pytest.mark.feature("static membership")
@in_loop
async def test_a_static_member_comes_back_without_a_rebalance(clients):
    name = await clients.topic(partitions=4)
    expected = set(partitions(name, 4))
    listener = Revocations()
    stays = await clients.consumer(group_id=clients.group, group_instance_id="stays")
    stays.subscribe([name], listener=listener)
    leaves = await clients.consumer(name, group_id=clients.group, group_instance_id="leaves")
    await eventually(lambda: shared([stays, leaves], expected), "two partitions for each")
    listener.count, share = 0, leaves.assignment()
    await clients.stop_one(leaves)
    returned = await clients.consumer(name, group_id=clients.group, group_instance_id="leaves")
    await eventually(lambda: shared([stays, returned], expected), "the member that came back")
    assert returned.assignment() == share
    assert listener.count == 0, "the member that stayed kept its partitions all along"
