"""What a power loss, or one kill after another, may not take: each of these stories was a loss once."""

import asyncio
from collections.abc import Callable

import pytest

from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage.checkpoint_files import decode_offsets
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, story

JOURNAL = "/data/coordination/coordination.journal"
LOG = "/data/t-0/00000000000000000000.log"
SEEDS = pytest.mark.parametrize("seed", range(8))


def killed_before(m: Machine, operation: str, matches: Callable[[str], bool]) -> list[SimDisk]:
    """The disk as a kill leaves it right before the next such change."""
    states: list[SimDisk] = []

    def look(what: str, path: str, size: int) -> None:
        if what == operation and matches(path) and not states:
            states.append(m.disk.after_crash(keep_running=True))

    m.disk.trace = look
    return states


async def start_from(m: Machine, states: list[SimDisk]) -> None:
    await m.crash()
    (m.disk,) = states
    await m.start()


async def lose_power(m: Machine, seed: int) -> None:
    m.disk.random.seed(seed)
    await m.crash(power=True)
    await m.start()


@story
@SEEDS
async def test_a_log_that_was_new_when_the_process_died(m: Machine, seed: int) -> None:
    """Its name was not durable then, and who opened it again took it for granted that it was."""
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    states = killed_before(m, "sync_dir", lambda path: path == "/data/t-0")
    await client.produce("t", batch(b"1"))
    await start_from(m, states)
    client = await m.client()
    # It is also the last thing that happens before the power fails.
    assert (await client.produce("t", batch(b"2"))).error_code == 0
    values = await client.read("t")
    await lose_power(m, seed)
    assert await (await m.client()).read("t") == values == [b"1", b"2"]


@story
@SEEDS
async def test_an_empty_log_that_was_new_when_the_process_died(m: Machine, seed: int) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    await m.crash()
    await m.start()
    client = await m.client()
    assert (await client.produce("t", batch(b"1"))).error_code == 0
    await lose_power(m, seed)
    assert await (await m.client()).read("t") == [b"1"]


@story
@SEEDS
async def test_a_topic_of_which_only_the_page_cache_knew(m: Machine, seed: int) -> None:
    """The process died between write and sync of the journal. What the next one acts upon must be durable first."""
    client = await m.client()
    await client.create_topic("other")
    states = killed_before(m, "sync", lambda path: path == JOURNAL)
    await client.create_topic("t", flush_before_ack=True)
    await start_from(m, states)
    client = await m.client()
    assert (await client.produce("t", batch(b"1"))).error_code == 0
    await lose_power(m, seed)
    assert await (await m.client()).read("t") == [b"1"]


@story
@SEEDS
async def test_a_topic_whose_creation_was_not_synced_because_the_disk_failed(m: Machine, seed: int) -> None:
    """After a failed sync the pages count as clean: the next one, of the next process too, writes nothing."""
    client = await m.client()
    await client.create_topic("other")
    m.disk.faults.fail_next("sync", lambda path: path == JOURNAL)
    # So many that the change has pages of its own, which nothing is written to later.
    asked = asyncio.ensure_future(client.create_topic("t", 500, flush_before_ack=True))
    await m.broker.stopped
    await m.stop()
    asked.cancel()
    await m.start()
    client = await m.client()
    if "t" not in m.broker.services.metadata.topics:
        await client.create_topic("t", 500, flush_before_ack=True)
    assert (await client.produce("t", batch(b"1"), 499)).error_code == 0
    await lose_power(m, seed)
    assert await (await m.client()).read("t", 0, 499) == [b"1"]


@story
async def test_the_log_start_of_a_deleted_topic_is_not_that_of_the_next(m: Machine) -> None:
    """Killed after a deletion was carried out and before the checkpoints had forgotten it."""
    client = await m.client()
    await client.create_topic("t")
    for n in range(20):
        await client.produce("t", batch(b"old %d" % n))
    await client.delete_records("t", 15)
    await asyncio.sleep(61)
    points = decode_offsets(m.disk.read("/data/recovery-point-offset-checkpoint"))
    assert 20 in points.values()
    states = killed_before(m, "create", lambda path: path.endswith("offset-checkpoint.tmp"))
    await client.delete_topic("t")
    await start_from(m, states)
    client = await m.client()
    await client.create_topic("t")
    for n in range(10):
        await client.produce("t", batch(b"new %d" % n))
    await m.crash()
    await m.start()
    client = await m.client()
    assert await client.read("t") == [b"new %d" % n for n in range(10)]
    assert m.partition("t").log.log_start_offset == 0


@story
async def test_a_checkpoint_that_could_not_forget_a_deleted_topic(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for n in range(20):
        await client.produce("t", batch(b"old %d" % n))
    await client.delete_records("t", 15)
    m.disk.faults.fail_next("write", lambda path: path.endswith("offset-checkpoint.tmp"))
    await client.delete_topic("t")
    await client.create_topic("t")
    await client.produce("t", batch(b"new"))
    await m.crash()
    await m.start()
    assert await (await m.client()).read("t") == [b"new"]


@story
@SEEDS
async def test_a_deleted_topic_does_not_come_back_as_the_next_of_its_name(m: Machine, seed: int) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    await client.produce("t", batch(b"old"))
    states = killed_before(m, "rename", lambda path: path == "/data/t-0")
    await client.delete_topic("t")
    await m.crash()
    (m.disk,) = states
    await lose_power(m, seed)
    client = await m.client()
    assert "t" not in m.broker.services.metadata.topics
    await client.create_topic("t")
    assert (await client.produce("t", batch(b"new"))).base_offset == 0
    assert await client.read("t") == [b"new"]


@story
async def test_a_log_without_the_id_of_its_topic(m: Machine) -> None:
    """The id's file was lost with the power, and then the topic was deleted: Kafka puts such a log aside too."""
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"old"))
    states = killed_before(m, "rename", lambda path: path == "/data/t-0")
    await client.delete_topic("t")
    await m.crash()
    (m.disk,) = states
    m.disk.data("/data/t-0/partition.metadata")[:] = b""
    await m.start()
    client = await m.client()
    await client.create_topic("t")
    assert (await client.produce("t", batch(b"new"))).base_offset == 0
    assert await client.read("t") == [b"new"]
    assert [name for name in m.disk.listdir("/data") if name.endswith("-stray")]


@story
async def test_a_log_that_could_be_opened_only_later(m: Machine) -> None:
    """It was taken for one that had been closed cleanly then, as new ones are."""
    client = await m.client()
    await client.create_topic("t")
    for n in range(20):
        await client.produce("t", batch(b"%d" % n, size=1000))
    await client.delete_records("t", 3)
    await m.crash()
    # A page in the middle of the last batches never came to the disk.
    m.disk.data(LOG)[-3000:-2500] = bytes(500)
    m.disk.faults.fail_next("read", lambda path: path == LOG)
    await m.start()
    await asyncio.sleep(11)
    values = await (await m.client()).read("t", 3)
    assert [int(value.rstrip(b".")) for value in values] == list(range(3, 17))
    log = m.partition("t").log
    assert (log.log_start_offset, log.recovery_point) == (3, 0)


@story
async def test_a_log_that_could_be_opened_only_later_is_synced_before_it_is_served(
    m: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers see what is synced, and nobody writes any more who would have it synced."""
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    for n in range(20):
        assert (await client.produce("t", batch(b"%d" % n))).error_code == 0
    await m.crash()
    m.disk.data(LOG).extend(b"torn")
    m.disk.faults.fail_next("read", lambda path: path == LOG)
    await m.start()
    await asyncio.sleep(11)
    assert await (await m.client()).read("t") == [b"%d" % n for n in range(20)]
    assert m.partition("t").high_watermark == 20
    assert "log repaired partition=t-0" in caplog.text


async def commit(client: Client) -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    answer = await client.request(OffsetCommitRequest(group_id="g", topics=topics), 8, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


@story
async def test_groups_whose_log_could_be_opened_only_later_are_served(m: Machine) -> None:
    """They were taken for lost until the next start."""
    client = await m.client()
    await client.create_topic("t")
    # Whoever looks for the coordinator makes the topic.
    await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 6, FindCoordinatorResponse)
    await asyncio.sleep(1)
    assert await commit(client) == ErrorCode.NONE
    await m.crash()
    m.disk.faults.fail_next("read", lambda path: path.startswith("/data/__consumer_offsets-0/"))
    await m.start()
    client = await m.client()
    await asyncio.sleep(1)
    assert await commit(client) == ErrorCode.NOT_COORDINATOR
    await asyncio.sleep(20)
    assert await commit(client) == ErrorCode.NONE


@story
async def test_a_log_that_could_be_opened_only_after_an_orderly_stop(m: Machine) -> None:
    """The stop is no clean one for this log, which nobody has recovered since the crash."""
    client = await m.client()
    await client.create_topic("t")
    for n in range(20):
        await client.produce("t", batch(b"%d" % n, size=1000))
    await m.crash()
    m.disk.data(LOG)[-3000:-2500] = bytes(500)
    m.disk.faults.fail_next("read", lambda path: path == LOG)
    await m.start()
    await m.restart()
    assert [int(value.rstrip(b".")) for value in await (await m.client()).read("t")] == list(range(17))


@story
async def test_a_checkpoint_does_not_forget_a_log_that_cannot_be_opened(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for n in range(20):
        await client.produce("t", batch(b"%d" % n))
    await client.delete_records("t", 3)
    await m.stop()
    m.disk.faults.fail_next("read", lambda path: path == LOG)
    await m.start()
    assert m.broker.services.replicas.get("t", 0) is None
    await m.broker.services.replicas.logs.write_checkpoints()
    await m.crash()
    await m.start()
    log = m.partition("t").log
    assert (log.log_start_offset, log.recovery_point) == (3, 20)


@story
async def test_a_repeated_deletion_is_durable_when_it_is_answered(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for n in range(10):
        await client.produce("t", batch(b"%d" % n))
    m.disk.faults.fail_next("write", lambda path: "log-start-offset" in path)
    assert (await client.delete_records("t", 3))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert await client.delete_records("t", 3) == (0, 3)
    await m.crash()
    await m.start()
    assert m.partition("t").log.log_start_offset == 3
