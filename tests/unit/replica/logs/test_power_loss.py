"""Regression tests: records, topics and offsets that a power loss or repeated kills have lost once."""

import asyncio
from collections.abc import Callable

import pytest

from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage.checkpoint_files import decode_offsets
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tests.sampling import third_of
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, broker_test

JOURNAL = "/data/coordination/coordination.journal"
LOG = "/data/t-0/00000000000000000000.log"
SEEDS = pytest.mark.parametrize("seed", third_of(range(8)))


def killed_before(m: Machine, operation: str, matches: Callable[[str], bool]) -> list[SimDisk]:
    """Return a list that gets the disk as of a kill right before the next such change."""
    states: list[SimDisk] = []

    def on_change(kind: str, path: str, size: int) -> None:
        if kind == operation and matches(path) and not states:
            states.append(m.disk.after_crash(keep_running=True))

    m.disk.trace = on_change
    return states


async def start_from(m: Machine, states: list[SimDisk]) -> None:
    await m.crash()
    (m.disk,) = states
    await m.start()


async def lose_power(m: Machine, seed: int) -> None:
    m.disk.random.seed(seed)
    await m.crash(power=True)
    await m.start()


@broker_test
@SEEDS
async def test_a_log_that_was_created_just_before_a_kill(m: Machine, seed: int) -> None:
    """The directory entry was not synced, and the next process assumed that it was."""
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    states = killed_before(m, "sync_dir", lambda path: path == "/data/t-0")
    await client.produce("t", batch(b"1"))
    await start_from(m, states)
    client = await m.client()
    # The power fails right after this append.
    assert (await client.produce("t", batch(b"2"))).error_code == 0
    values = await client.read("t")
    await lose_power(m, seed)
    assert await (await m.client()).read("t") == values == [b"1", b"2"]


@broker_test
@SEEDS
async def test_an_empty_log_that_was_created_just_before_a_kill(m: Machine, seed: int) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    await m.crash()
    await m.start()
    client = await m.client()
    assert (await client.produce("t", batch(b"1"))).error_code == 0
    await lose_power(m, seed)
    assert await (await m.client()).read("t") == [b"1"]


@broker_test
@SEEDS
async def test_a_topic_whose_creation_was_written_but_not_synced(m: Machine, seed: int) -> None:
    """The process was killed between write and sync of the journal. The next process must sync it first."""
    client = await m.client()
    await client.create_topic("other")
    states = killed_before(m, "sync", lambda path: path == JOURNAL)
    await client.create_topic("t", flush_before_ack=True)
    await start_from(m, states)
    client = await m.client()
    assert (await client.produce("t", batch(b"1"))).error_code == 0
    await lose_power(m, seed)
    assert await (await m.client()).read("t") == [b"1"]


@broker_test
@SEEDS
async def test_a_topic_whose_creation_could_not_be_synced(m: Machine, seed: int) -> None:
    """After a failed sync the pages are clean: later syncs, also of the next process, write nothing."""
    client = await m.client()
    await client.create_topic("other")
    m.disk.faults.fail_next("sync", lambda path: path == JOURNAL)
    # Many partitions, so that the change has pages to which nothing is written later.
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


@broker_test
async def test_the_log_start_offset_of_a_deleted_topic_does_not_apply_to_a_new_one(m: Machine) -> None:
    """The broker is killed after the deletion and before the checkpoints are written without the topic."""
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


@broker_test
async def test_a_failed_checkpoint_after_a_deletion(m: Machine) -> None:
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


@broker_test
@SEEDS
async def test_a_new_topic_does_not_get_the_records_of_a_deleted_one(m: Machine, seed: int) -> None:
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


@broker_test
async def test_a_log_without_its_topic_id_becomes_stray(m: Machine) -> None:
    """A power loss has emptied the file of the id, and then the topic was deleted. Kafka makes such a log stray too."""
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


@broker_test
async def test_a_log_that_is_opened_later_is_recovered(m: Machine) -> None:
    """It was opened as if it had been closed cleanly, like a new log."""
    client = await m.client()
    await client.create_topic("t")
    for n in range(20):
        await client.produce("t", batch(b"%d" % n, size=1000))
    await client.delete_records("t", 3)
    await m.crash()
    # A page in the middle of the last batches was never written to the disk.
    m.disk.data(LOG)[-3000:-2500] = bytes(500)
    m.disk.faults.fail_next("read", lambda path: path == LOG)
    await m.start()
    await asyncio.sleep(11)
    values = await (await m.client()).read("t", 3)
    assert [int(value.rstrip(b".")) for value in values] == list(range(3, 17))
    log = m.partition("t").log
    assert (log.log_start_offset, log.recovery_point) == (3, 0)


@broker_test
async def test_a_log_that_is_opened_later_is_synced_before_it_is_served(
    m: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers read only synced records, and no append follows that would sync them."""
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
    response = await client.request(OffsetCommitRequest(group_id="g", topics=topics), 8, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


@broker_test
async def test_groups_whose_log_is_opened_later_are_served(m: Machine) -> None:
    """The coordinator did not load them before the next start."""
    client = await m.client()
    await client.create_topic("t")
    # FindCoordinator creates the topic.
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


@broker_test
async def test_a_log_that_is_opened_only_after_a_clean_shutdown_is_recovered(m: Machine) -> None:
    """The shutdown was not clean for this log, which was not recovered after the crash."""
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


@broker_test
async def test_a_checkpoint_keeps_the_offsets_of_logs_that_cannot_be_opened(m: Machine) -> None:
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


@broker_test
async def test_a_repeated_delete_records_is_durable_when_it_succeeds(m: Machine) -> None:
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
