"""The log cleaner: which logs are compacted when, configs, failures."""

import asyncio
import errno
from typing import Any

import pytest

from kbroker.storage.checkpoint_files import decode_offsets
from kbroker.storage.cleaner.compaction_plan import decode_plan
from protocol.records.batch import build_batch
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import DAY, HOUR, MINUTE, Machine
from tests.unit.support.simulated_broker import broker_test as any_broker_test

MIB = 1 << 20


def broker_test(function: Any = None, **configs: object) -> Any:
    """Make a test whose clients stay connected for days."""
    return any_broker_test(function, **configs, connections_max_idle_ms=1 << 40)


async def fill(client: Client, topic: str, count: int, keys: int = 2, size: int = 700_000) -> None:
    """Append `count` batches; each is a segment."""
    for n in range(count):
        await client.produce(topic, batch(b"v%d" % n, key=b"k%d" % (n % keys), size=size))


async def values(client: Client, topic: str = "t") -> list[bytes]:
    return [value.rstrip(b".") for value in await client.read(topic)]


def cleaned(m: Machine) -> dict[str, int]:
    offsets = decode_offsets(m.disk.read("/data/cleaner-offset-checkpoint"))
    return {tp.topic: offset for tp, offset in offsets.items()}


COMPACT = {"cleanup_policy": "compact", "segment_bytes": MIB}


@broker_test
async def test_a_compacted_log_is_not_compacted_again_after_a_restart(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 7)
    await asyncio.sleep(MINUTE)
    assert (m.processes.started["run"], cleaned(m)) == (1, {"t": 6})
    for crash in (False, True):
        if crash:
            await m.crash()
            await m.start()
        else:
            await m.restart()
        await asyncio.sleep(MINUTE)
        assert m.processes.started["run"] == 0
        assert m.partition("t").log.cleaned_to == 6


@broker_test(log_cleaner_backoff_ms=1000)
async def test_an_overdue_log_is_compacted_first_then_the_dirtiest(m: Machine) -> None:
    client = await m.client()
    # The first compaction of each topic removes nothing; then a bit, half or all of it has newer values.
    for topic in ("bit", "half", "all", "late"):
        await client.create_topic(topic, **COMPACT, min_cleanable_dirty_ratio=0)
        await fill(client, topic, 9 if topic != "all" else 1, keys=20)
    await asyncio.sleep(MINUTE)
    m.processes.held = True
    await client.create_topic("first", **COMPACT, min_cleanable_dirty_ratio=0)
    await fill(client, "first", 3)
    await m.until(lambda: m.processes.started["run"] == 4)
    order = []
    maintenance = m.broker.services.replicas.maintenance
    await fill(client, "bit", 1)
    await fill(client, "half", 6)
    await fill(client, "all", 6)
    await fill(client, "late", 1)
    await client.alter_topic("late", max_compaction_lag_ms=1)
    await asyncio.sleep(5)
    while maintenance.uncleaned:
        for partition in maintenance.compactions:
            if not order or order[-1] != partition.tp.topic:
                order.append(partition.tp.topic)
        m.processes.release()
        m.processes.held = len(order) < 9
        await asyncio.sleep(0.01)
        if len(order) >= 5:
            break
    m.processes.release()
    assert order == ["first", "late", "all", "half", "bit"]


@broker_test(log_cleaner_threads=2, log_cleaner_backoff_ms=1000)
async def test_at_most_log_cleaner_threads_compactions_run(m: Machine) -> None:
    client = await m.client()
    m.processes.held = True
    for number in range(6):
        await client.create_topic(f"t{number}", **COMPACT)
        await fill(client, f"t{number}", 4)
    await asyncio.sleep(5)
    assert m.processes.started["run"] == 2
    await client.alter_broker(log_cleaner_threads=3)
    await asyncio.sleep(5)
    assert m.processes.started["run"] == 3
    m.processes.release()
    await asyncio.sleep(MINUTE)
    assert set(cleaned(m).values()) == {3}
    assert len(cleaned(m)) == 6


@broker_test(log_cleaner_enable=False)
async def test_log_cleaner_enable(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 7)
    await asyncio.sleep(HOUR)
    assert m.processes.started["run"] == 0


@broker_test
async def test_broker_configs_are_applied_in_the_process(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await client.alter_broker(
        log_cleaner_io_max_bytes_per_second=5e5,
        log_cleaner_dedupe_buffer_size=4 * MIB,
        log_cleaner_io_buffer_load_factor=0.5,
        log_cleaner_io_buffer_size=MIB,
    )
    plans = []
    process_runner = m.broker.environment.process_runner

    def noting(job: Any, task: bytes, /) -> Any:
        plans.append(decode_plan(task))
        return process_runner(job, task)

    m.broker.environment.process_runner = noting
    await fill(client, "t", 4)
    await asyncio.sleep(MINUTE)
    (plan,) = plans
    assert (plan.map_bytes, plan.io_bytes, plan.rate) == (2 * MIB, MIB // 2, 5e5)


@broker_test
async def test_a_damaged_log_is_uncleanable_until_a_restart(m: Machine) -> None:
    client = await m.client()
    for topic in ("bad", "t"):
        await client.create_topic(topic, **COMPACT)
        await fill(client, topic, 7)
    log = m.partition("bad").log
    m.disk.data(log.segments[2].path())[5000] ^= 1
    before = log.size_bytes
    await asyncio.sleep(HOUR)
    assert m.processes.started["run"] == 2
    assert (log.size_bytes, log.cleaned_to, log.health.offline) == (before, 0, None)
    assert m.disk.find(".cleaned") == []
    assert m.partition("t").log.cleaned_to == 6
    # The log still accepts appends, and is tried again after a restart.
    await fill(client, "bad", 3)
    await asyncio.sleep(HOUR)
    assert m.processes.started["run"] == 2
    await m.restart()
    await asyncio.sleep(HOUR)
    assert m.processes.started["run"] == 1


@broker_test
async def test_a_failed_compaction_is_retried_with_a_growing_backoff(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 12, keys=7, size=300_000)
    m.disk.capacity = m.disk.used + 100_000
    began = []
    for _ in range(60):
        await asyncio.sleep(MINUTE)
        began.append(m.processes.started["run"])
    assert began[1] >= 2
    assert 1 <= began[-1] - began[-11] <= 3
    m.disk.capacity = None
    await asyncio.sleep(5 * MINUTE)
    assert m.partition("t").log.cleaned_to == 9
    assert m.disk.find(".cleaned") == []


@broker_test
async def test_a_compaction_that_cannot_be_installed_backs_off(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 7, size=300_000)
    rename = m.disk.rename

    def no_room(old: str, new: str) -> None:
        if new.endswith(".swap"):
            raise OSError(errno.ENOSPC, "no room for a name")
        rename(old, new)

    m.disk.rename = no_room  # type: ignore[method-assign]
    await asyncio.sleep(10 * MINUTE)
    assert 2 <= m.processes.started["run"] <= 8
    assert m.partition("t").log.cleaned_to == 0
    assert len(await values(client)) == 7
    m.disk.rename = rename  # type: ignore[method-assign]
    await asyncio.sleep(5 * MINUTE)
    assert m.partition("t").log.cleaned_to == 6


@broker_test
async def test_a_compaction_is_retried_if_its_process_dies(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 7)
    m.processes.held = True
    await m.until(lambda: m.processes.started["run"])
    # The state after a kill in the middle of a compaction.
    m.disk.open("/data/t-0/00000000000000000000.log.cleaned", create=True).append(b"half")
    (job,) = m.processes.held_jobs
    job.kill()
    await asyncio.sleep(1)
    assert m.disk.find(".cleaned") == []
    m.processes.release()
    await asyncio.sleep(MINUTE)
    assert await values(client) == [b"v4", b"v5", b"v6"]


@broker_test
async def test_a_running_compaction_does_not_affect_a_new_topic_of_the_same_name(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 7)
    m.processes.held = True
    await m.until(lambda: m.processes.started["run"])
    await client.delete_topic("t")
    await client.create_topic("t", **COMPACT)
    await fill(client, "t", 3, keys=3)
    m.processes.release()
    await asyncio.sleep(MINUTE)
    assert await values(client) == [b"v0", b"v1", b"v2"]
    assert m.disk.find(".cleaned") == []


@broker_test
@pytest.mark.parametrize("restarted", [False, True])
async def test_max_compaction_lag(m: Machine, restarted: bool) -> None:
    """Records in the active segment are compacted too, although nothing is appended."""
    client = await m.client()
    lag_ms = int(2 * HOUR * 1000)
    await client.create_topic("t", cleanup_policy="compact", min_cleanable_dirty_ratio=1, max_compaction_lag_ms=lag_ms)
    for value in (b"old", b"new"):
        await client.produce("t", batch(value, at_ms=m.now_ms))
    if restarted:
        await m.restart()
        client = await m.client()
    await asyncio.sleep(HOUR)
    assert await values(client) == [b"old", b"new"]
    await asyncio.sleep(HOUR + 2 * MINUTE)
    assert await values(client) == [b"new"]


@broker_test
async def test_min_compaction_lag(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT, min_compaction_lag_ms=int(HOUR * 1000))
    for n in range(7):
        record = batch(b"v%d" % n, key=b"k", at_ms=m.now_ms, size=700_000)
        await client.produce("t", record)
    await asyncio.sleep(HOUR - MINUTE)
    assert len(await values(client)) == 7
    await asyncio.sleep(3 * MINUTE)
    assert await values(client) == [b"v5", b"v6"]


@broker_test
async def test_a_tombstone_is_removed_after_delete_retention_ms(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", **COMPACT, min_cleanable_dirty_ratio=0, delete_retention_ms=int(DAY * 1000))
    await fill(client, "t", 2)
    await client.produce("t", build_batch([(m.now_ms, b"k0", None, ())]))
    for n in range(2):
        await client.produce("t", batch(b"more%d" % n, key=b"other", size=800_000))
    await asyncio.sleep(MINUTE)
    assert await values(client) == [b"v1", b"", b"more0", b"more1"]
    deleted = []
    for pause in (DAY / 2, DAY / 2 - 5 * MINUTE, 5 * MINUTE):
        await asyncio.sleep(pause)
        await client.produce("t", batch(b"more", key=b"other", size=800_000))
        await asyncio.sleep(MINUTE)
        # In closed segments there is the latest of each key but one.
        assert (await values(client))[0] == b"v1"
        deleted.append(b"" not in await values(client))
    assert deleted == [False, False, True]
