"""Topics, internal ones too, are compacted while the broker runs."""

import asyncio

import pytest

from kbroker.storage.checkpoint_files import decode_offsets
from protocol.messages.k08_offset_commits import (
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
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import MINUTE, Machine, broker_test

OFFSETS = "__consumer_offsets"
SMALL = {"offsets_topic_segment_bytes": 1 << 20}


async def commit(client: Client, group: str, offset: int) -> None:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m" * 4000)
    request = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, topics=[OffsetCommitRequestTopic(name="t", partitions=[part])]
    )
    response = await client.request(request, 8, OffsetCommitResponse)
    assert response.topics[0].partitions[0].error_code == 0


async def committed(client: Client, group: str) -> int:
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])])
    response = await client.request(request, 8, OffsetFetchResponse)
    assert response.groups[0].error_code == 0
    return response.groups[0].topics[0].partitions[0].committed_offset


async def with_groups(m: Machine, commits: int) -> Client:
    """Let ten groups commit in turn, `commits` times in all."""
    client = await m.client()
    await client.create_topic("t")
    coordinator = await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 4, FindCoordinatorResponse)
    assert coordinator.coordinators[0].error_code == 0
    await m.broker.services.groups.runtime.wait_until_loaded("g")
    for n in range(commits):
        await commit(client, f"g{n % 10}", n)
    return client


@broker_test(**SMALL)
async def test_offsets_are_compacted_and_a_restart_loads_the_same(m: Machine) -> None:
    client = await with_groups(m, 600)
    log = m.partition(OFFSETS).log
    assert (log.log_end_offset, len(log.segments)) == (600, 3)
    before = log.size_bytes
    await asyncio.sleep(MINUTE)
    assert log.size_bytes < before // 2
    assert log.cleaned_to == log.active.base_offset
    assert m.partition(OFFSETS) not in m.broker.services.replicas.maintenance.uncleaned
    cleaned = decode_offsets(m.disk.read("/data/cleaner-offset-checkpoint"))
    assert list(cleaned.values()) == [log.cleaned_to]
    for stop in ("stop", "kill"):
        if stop == "stop":
            await m.stop()
        else:
            await m.crash(power=False)
        await m.start()
        client = await m.client()
        await m.broker.services.groups.runtime.wait_until_loaded("g")
        assert [await committed(client, f"g{n}") for n in range(10)] == list(range(590, 600))
        assert m.partition(OFFSETS).log.cleaned_to == log.cleaned_to


async def fill(client: Client, rounds: int, **configs: object) -> None:
    """Append records of two keys in turn; each batch is a segment."""
    await client.create_topic("t", **{"segment_bytes": 1 << 20, **configs})
    for n in range(rounds):
        await client.produce("t", batch(b"v%d" % n, key=b"k%d" % (n % 2), size=700_000))


@broker_test
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
async def test_a_topic_is_compacted(m: Machine, policy: str) -> None:
    client = await m.client()
    await fill(client, 7, cleanup_policy=policy)
    await asyncio.sleep(MINUTE)
    # The last two records in closed segments, and the record in the active segment.
    assert [value[:2] for value in await client.read("t")] == [b"v4", b"v5", b"v6"]
    assert m.partition("t").log.log_end_offset == 7


@broker_test
async def test_a_topic_is_compacted_when_its_policy_is_altered(m: Machine) -> None:
    client = await m.client()
    await fill(client, 7)
    await asyncio.sleep(MINUTE)
    assert len(await client.read("t")) == 7
    await client.alter_topic("t", cleanup_policy="compact")
    await asyncio.sleep(MINUTE)
    assert len(await client.read("t")) == 3


@broker_test
async def test_a_log_is_compacted_after_a_restart(m: Machine) -> None:
    client = await m.client()
    await fill(client, 7, cleanup_policy="compact")
    await m.restart()
    client = await m.client()
    assert len(await client.read("t")) == 7
    await asyncio.sleep(MINUTE)
    assert len(await client.read("t")) == 3


@broker_test
async def test_a_log_with_constant_appends_is_compacted_repeatedly(m: Machine) -> None:
    client = await m.client()
    await fill(client, 3, cleanup_policy="compact", flush_ms=1 << 40)
    for n in range(200):
        await client.produce("t", batch(b"w%d" % n, key=b"k", size=300_000))
        await asyncio.sleep(1)
    assert len(await client.read("t")) < 70


@broker_test(**SMALL)
@pytest.mark.parametrize("end", ["delete", "stop"])
async def test_a_stop_or_deletion_during_a_compaction(m: Machine, end: str) -> None:
    client = await with_groups(m, 600)
    m.processes.held = True
    await m.until(lambda: m.processes.started["run"])
    if end == "delete":
        ending = asyncio.ensure_future(client.delete_topic(OFFSETS))
        await ending
    else:
        ending = asyncio.ensure_future(m.stop())
        await asyncio.sleep(1)
    m.processes.release()
    await ending
    assert m.disk.find(".cleaned") == []
    assert m.disk.find(".swap") == []
    if end == "stop":
        await m.start()
        client = await m.client()
        await m.broker.services.groups.runtime.wait_until_loaded("g")
        assert [await committed(client, f"g{n}") for n in range(10)] == list(range(590, 600))
        # The restarted broker completes the compaction.
        await commit(client, "g0", 600)
        await asyncio.sleep(MINUTE)
        assert m.partition(OFFSETS).log.cleaned_to > 0


@broker_test(**SMALL)
@pytest.mark.parametrize("broken", ["damage", "full"])
async def test_a_compaction_that_fails_changes_nothing(m: Machine, broken: str) -> None:
    client = await with_groups(m, 600)
    log = m.partition(OFFSETS).log
    closed = log.segments[0].path()
    if broken == "damage":
        m.disk.data(closed)[5000] ^= 1
    else:
        m.disk.capacity = m.disk.used + 1000
    before = log.size_bytes
    await asyncio.sleep(MINUTE)
    assert (log.size_bytes, log.cleaned_to, log.health.offline) == (before, 0, None)
    assert m.disk.find(".cleaned") == []
    assert await committed(client, "g3") == 593
    if broken == "full":
        m.disk.capacity = None
        await asyncio.sleep(MINUTE)
        assert log.cleaned_to > 0
