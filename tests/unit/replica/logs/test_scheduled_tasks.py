"""The periodic tasks of the logs: flushes, checkpoints, retention, expiry of producers, files and logs to reopen."""

import asyncio
import errno

import pytest

from kbroker.storage.checkpoint_files import decode_offsets
from protocol.errors import ErrorCode
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import DAY, HOUR, MINUTE, Machine, broker_test

LOG = "/data/t-0/00000000000000000000.log"
TWO_WEEKS = 14 * DAY


# Flushes.


@broker_test
async def test_an_idle_log_is_flushed(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    partition = m.partition("t")
    await asyncio.sleep(8)
    assert partition.log.recovery_point == 0
    await asyncio.sleep(4)
    assert partition.log.recovery_point == 1
    assert partition not in m.broker.services.replicas.maintenance.unflushed


@broker_test
async def test_flush_ms(m: Machine) -> None:
    """flush.ms counts from the first unsynced append."""
    client = await m.client()
    await client.create_topic("t", flush_ms=5000)
    partition = m.partition("t")
    await client.produce("t", batch(b"0"))
    for n in range(1, 8):
        await asyncio.sleep(0.9)
        await client.produce("t", batch(b"%d" % n))
        assert partition.log.recovery_point == (0 if n <= 5 else 6), n
    await asyncio.sleep(4)
    assert partition.log.recovery_point >= 6


@broker_test
async def test_flush_messages(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", flush_messages=10)
    log = m.partition("t").log
    for n in range(1, 31):
        await client.produce("t", batch(b"v"))
        await asyncio.sleep(0.05)
        assert log.recovery_point == n // 10 * 10
    assert m.disk.syncs[LOG] == 3


@broker_test
async def test_a_failed_background_sync_takes_the_log_offline(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    m.disk.faults.fail_next("sync")
    await asyncio.sleep(20)
    assert m.partition("t").log.health.offline is not None
    assert (await client.produce("t", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert m.disk.syncs[LOG] == 1
    await asyncio.sleep(HOUR)
    assert m.disk.syncs[LOG] == 1


@broker_test
async def test_a_failed_sync_at_a_roll_fails_the_waiting_requests(m: Machine) -> None:
    """The sync of a closed segment fails; the sync that the Produce requests wait for must not be tried then."""
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True, segment_bytes=1 << 20)
    await client.produce("t", batch(b"a", size=600_000))
    m.disk.faults.fail_next("sync")
    responses = [client.send_produce("t", batch(b"b", size=600_000)) for _ in range(3)]
    for response in responses:
        assert (await response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(MINUTE)
    assert m.partition("t").log.recovery_point == 1
    assert len(m.broker.services.replicas.purgatory) == 0


# Checkpoints.


@broker_test
async def test_recovery_points_are_written_if_they_have_changed(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 2)
    await client.produce("t", batch(b"a", b"b"), 1)
    await asyncio.sleep(61)
    points = decode_offsets(m.disk.read("/data/recovery-point-offset-checkpoint"))
    assert {tuple(tp): offset for tp, offset in points.items() if tp.topic == "t"} == {("t", 0): 0, ("t", 1): 2}
    assert m.disk.exists("/data/t-1/00000000000000000002.snapshot")
    # There is nothing more to write until the next append.
    written = dict(m.disk.syncs)
    mtime = m.disk.mtime_ms("/data/recovery-point-offset-checkpoint")
    await asyncio.sleep(DAY)
    assert dict(m.disk.syncs) == written
    assert m.disk.mtime_ms("/data/recovery-point-offset-checkpoint") == mtime


@broker_test
async def test_recovery_after_a_kill_reads_only_above_the_recovery_point(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    for n in range(5):
        await client.produce("t", batch(b"%d" % n, size=5000))
    await asyncio.sleep(61)
    await client.produce("t", batch(b"5"))
    await m.crash(power=False)
    # Damage below the recovery point is not detected.
    m.disk.data(LOG)[66] ^= 1
    await m.start()
    assert m.partition("t").log.log_end_offset == 6
    assert m.partition("t").log.recovery_point == 5


# Retention.


@broker_test(log_segment_bytes=1 << 20)
async def test_retention_over_two_weeks(m: Machine) -> None:
    """Old segments of idle partitions are deleted too."""
    client = await m.client()
    await client.create_topic("t", 3)
    for _ in range(3):
        client = await m.client()
        await client.produce("t", batch(b"old", at_ms=m.now_ms, size=700_000))
        await asyncio.sleep(DAY)
    client = await m.client()
    await client.produce("t", batch(b"new", at_ms=m.now_ms))
    partition = m.partition("t")
    await asyncio.sleep(TWO_WEEKS - 4 * DAY)
    assert partition.log.log_start_offset == 0
    await asyncio.sleep(DAY + HOUR)
    assert partition.log.log_start_offset == 1
    client = await m.client()
    assert (await client.fetch_partition("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(await client.read("t", 1)) == 3
    await asyncio.sleep(3 * DAY)
    assert partition.log.log_start_offset == partition.log.log_end_offset == 4
    assert m.disk.find(".log") == sorted(f"/data/{name}.log" for name in (
        "t-0/00000000000000000004", "t-1/00000000000000000000", "t-2/00000000000000000000"))  # fmt: skip
    await m.restart()
    client = await m.client()
    assert m.partition("t").log.log_start_offset == 4
    assert (await client.produce("t", batch(b"next"))).base_offset == 4


@broker_test
async def test_idle_partitions_cost_nothing(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 100)
    await asyncio.sleep(HOUR)
    turns = m.loop.iterations
    await asyncio.sleep(DAY)
    # Retention of 100 partitions every five minutes, in steps, and the expiry of group offsets every ten minutes.
    assert m.loop.iterations - turns < 3000


@broker_test
async def test_retention_by_size(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", segment_bytes=1 << 20, retention_bytes=3 << 20)
    for _ in range(8):
        await client.produce("t", batch(b"v", size=900_000, at_ms=m.now_ms))
    await asyncio.sleep(6 * MINUTE)
    assert m.partition("t").log.log_start_offset == 4
    await client.alter_topic("t", retention_bytes=1 << 20)
    await asyncio.sleep(6 * MINUTE)
    assert m.partition("t").log.log_start_offset == 6


@broker_test
async def test_retention_completes_a_waiting_fetch(m: Machine) -> None:
    client, other = await m.client(), await m.client()
    await client.create_topic("t", retention_ms=int(HOUR * 1000))
    await client.produce("t", batch(b"a", at_ms=m.now_ms))
    first = await other.fetch({("t", 0): 1}, session=(0, 0))
    waiting = other.send_fetch({}, session=(first.session_id, 1), max_wait_ms=int(DAY * 1000))
    began = m.loop.time()
    response = (await waiting).responses[0].partitions[0]
    assert (response.log_start_offset, response.high_watermark) == (1, 1)
    assert HOUR < m.loop.time() - began < HOUR + 6 * MINUTE


@broker_test
async def test_segments_roll_by_time(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", segment_ms=int(HOUR * 1000))
    for _ in range(3):
        client = await m.client()
        await client.produce("t", batch(b"v", at_ms=m.now_ms))
        await asyncio.sleep(40 * MINUTE)
    assert [segment.base_offset for segment in m.partition("t").log.segments] == [0, 2]


@broker_test
async def test_files_of_deleted_segments_are_removed_after_file_delete_delay_ms(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", segment_bytes=1 << 20, file_delete_delay_ms=120_000)
    for _ in range(3):
        await client.produce("t", batch(b"v", size=900_000, at_ms=m.now_ms))
    await client.delete_records("t", 2)
    await asyncio.sleep(5 * MINUTE + 10)
    assert len(m.disk.find(".deleted")) >= 2
    await asyncio.sleep(2 * MINUTE)
    assert m.disk.find(".deleted") == []
    assert len(m.disk.find("t-0/00000000000000000002.log")) == 1
    assert m.disk.find("t-0/00000000000000000000.log") == []


@broker_test(producer_id_expiration_ms=int(HOUR * 1000))
async def test_producers_expire(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a", producer=(9, 0, 0), at_ms=m.now_ms))
    assert len(m.partition("t").log.producers) == 1
    await asyncio.sleep(2 * HOUR)
    assert len(m.partition("t").log.producers) == 0


# A full disk.


@broker_test
@pytest.mark.parametrize("dirty", [False, True])
async def test_appends_resume_when_a_full_disk_has_room(m: Machine, dirty: bool) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    if not dirty:
        await asyncio.sleep(15)
    m.disk.capacity = m.disk.used + 100
    data = batch(b"b", producer=(9, 0, 0), size=500)
    assert (await client.produce("t", data)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    small = batch(b"x")
    assert (await client.produce("t", small)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert await client.read("t") == [b"a"]
    await asyncio.sleep(MINUTE)
    assert (await client.produce("t", data)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    m.disk.capacity = None
    await asyncio.sleep(5)
    assert (await client.produce("t", data)).base_offset == 1
    assert m.partition("t").log.health.offline is None
    assert not m.broker.services.replicas.maintenance.full


@broker_test
async def test_appends_resume_while_another_log_is_synced(m: Machine) -> None:
    client = await m.client()
    for topic in ("t", "slow"):
        await client.create_topic(topic)
    m.threads.held.add("flush_blocking")
    await client.produce("slow", batch(b"a"))
    await asyncio.sleep(15)
    assert m.threads.started["flush_blocking"]
    m.disk.capacity = m.disk.used
    assert (await client.produce("t", batch(b"b"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    m.disk.capacity = None
    await asyncio.sleep(5)
    assert (await client.produce("t", batch(b"b"))).error_code == 0
    m.threads.release("flush_blocking")


@broker_test
async def test_a_topic_that_is_created_on_a_full_disk(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await m.client()
    await client.create_topic("before")
    open_file = type(m.disk).open

    def refuse(self, path, *, create=False, write=True):  # type: ignore[no-untyped-def]
        if create and "/t-1/" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return open_file(self, path, create=create, write=write)

    monkeypatch.setattr(type(m.disk), "open", refuse)
    with pytest.raises(AssertionError, match="The topic exists, but has no log yet"):
        await client.create_topic("t", 2)
    client.ids["t"] = m.broker.services.metadata.topics["t"].topic_id
    assert (await client.produce("t", batch(b"a"), 0)).error_code == 0
    for version in (12, 13):
        assert (await client.produce("t", batch(b"a"), 1, version=version)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.fetch_partition("t", 0, 1, version=version)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(MINUTE)
    monkeypatch.undo()
    await asyncio.sleep(15)
    assert (await client.produce("t", batch(b"a"), 1)).base_offset == 0
    # There is nothing left to retry.
    assert not m.broker.services.replicas.maintenance.unopened


@broker_test
async def test_a_topic_without_its_log_can_be_deleted_and_created_again(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await m.client()
    makedirs = type(m.disk).makedirs

    def refuse(self, path):  # type: ignore[no-untyped-def]
        if path.endswith("/t-0"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return makedirs(self, path)

    monkeypatch.setattr(type(m.disk), "makedirs", refuse)
    with pytest.raises(AssertionError, match="The topic exists, but has no log yet"):
        await client.create_topic("t")
    await client.delete_topic("t")
    assert not m.broker.services.replicas.maintenance.unopened
    monkeypatch.undo()
    await client.create_topic("t")
    assert (await client.produce("t", batch(b"a"))).base_offset == 0


# The tasks.


@broker_test
async def test_a_stop_waits_for_the_running_task(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", 10, flush_ms=1000)
    for index in range(10):
        await client.produce("t", batch(b"a"), index)
    m.threads.held.add("flush_blocking")
    await m.until(lambda: m.threads.started["flush_blocking"] > 0)
    stopping = asyncio.ensure_future(m.stop())
    await asyncio.sleep(1)
    assert not stopping.done()
    m.threads.release("flush_blocking")
    await stopping
    assert m.disk.exists("/data/.kafka_cleanshutdown")


@broker_test(log_retention_check_interval_ms=3_600_000)
async def test_files_of_closed_segments_are_closed_when_descriptors_are_short(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", internal_segment_bytes=200, flush_ms=100)
    for _ in range(20):
        await client.produce("t", batch(b"v" * 100))
    await asyncio.sleep(60)
    closed = [segment for segment in m.partition("t").log.segments if segment.end_offset is not None]
    assert any(segment.file is not None for segment in closed)
    m.disk.faults.open = 1.0
    response = await client.produce("t", batch(b"v" * 100))
    assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    m.disk.faults.open = 0.0
    await asyncio.sleep(1)
    assert all(segment.file is None for segment in closed)
    assert len(await client.read("t")) == 20
