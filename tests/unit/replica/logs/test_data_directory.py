"""The data directory at startup: its owner, stray logs, damaged files, invalid stored configs."""

import asyncio

import pytest

from kbroker.common import TopicPartition
from kbroker.replica.logs.data_directory import DirectoryInUse, ForeignDirectory
from kbroker.replica.logs.log_manager import AssignedPartition, LogManager
from kbroker.simulation.disk.log_files import durable_end
from kbroker.storage.metadata_files import read_meta_properties, write_meta_properties
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import Machine, broker_test


@broker_test
async def test_a_directory_belongs_to_one_broker(m: Machine) -> None:
    first = read_meta_properties(m.disk, "/data")
    assert first is not None
    assert (first.node_id, first.cluster_id) == (1, m.broker.services.metadata.cluster_id)
    assert len(first.directory_id) == 22
    await m.restart()
    assert read_meta_properties(m.disk, "/data") == first
    await m.stop()
    with pytest.raises(ForeignDirectory, match=r"^/data belongs to node.id=1; this broker has node.id=2$"):
        await m.start(node_id=2)
    await m.stop()
    await m.start(node_id=1)


@broker_test
async def test_a_directory_of_another_cluster(m: Machine) -> None:
    await m.stop()
    properties = read_meta_properties(m.disk, "/data")
    assert properties is not None
    write_meta_properties(m.disk, "/data", properties._replace(cluster_id="x" * 22))
    with pytest.raises(ForeignDirectory, match=r"/data belongs to cluster x{22}; this broker is in .{22}"):
        await m.start()


@broker_test
async def test_a_directory_whose_metadata_is_missing(m: Machine) -> None:
    """In a new cluster, the broker would rename all logs to .stray. It starts once the metadata is restored."""
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    await m.stop()
    files = {path: bytes(m.disk.data(path)) for path in m.disk.find("") if "/coordination/" in path}
    m.disk.rmtree("/data/coordination")
    reason = r"/data belongs to cluster .{22}, and the metadata of its topics is missing from /data/coordination"
    for _ in range(2):
        with pytest.raises(ForeignDirectory, match=reason):
            await m.start()
        await m.stop()
    for path, data in files.items():
        m.disk.write_atomic(path, data)
    await m.start()
    assert await (await m.client()).read("t") == [b"a"]


@broker_test
async def test_two_brokers_on_one_directory(m: Machine) -> None:
    first = m.broker
    with pytest.raises(DirectoryInUse, match="/data is in use by another broker"):
        await m.start(listeners="PLAINTEXT://broker:9093")
    await m.stop()
    m.broker = first
    client = await m.client()
    await client.create_topic("t")


@broker_test
async def test_logs_of_deleted_topics_are_deleted_by_the_next_start(
    m: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker was killed after a topic was deleted and before its directories were renamed."""
    caplog.set_level("INFO", logger="kbroker")
    client = await m.client()
    await client.create_topic("t", 2)
    await client.produce("t", batch(b"old"))
    m.threads.held.add("_try_each_blocking")
    deletion = asyncio.ensure_future(client.delete_topic("t"))
    await m.until(lambda: m.threads.started["_try_each_blocking"])
    await m.crash(power=False)
    deletion.cancel()
    m.disk.makedirs("/data/backup-1")
    m.threads.release("_try_each_blocking")
    await m.start()
    assert not [name for name in m.disk.listdir("/data") if name.startswith("t-")]
    # Other directories are unchanged.
    assert m.disk.isdir("/data/backup-1")
    assert sum("its topic or replica was removed" in record.message for record in caplog.records) == 2
    client = await m.client()
    await client.create_topic("t")
    assert (await client.produce("t", batch(b"new"))).base_offset == 0
    await m.restart()
    assert await (await m.client()).read("t") == [b"new"]


@broker_test
async def test_a_log_that_could_not_be_removed_is_recovered(m: Machine) -> None:
    """The sync of its last batch failed. A replica that is added again to this broker may still have the batch."""
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    replicas, tp = m.broker.services.replicas, TopicPartition("t", 0)
    partition = replicas.get(*tp)
    assert partition is not None
    m.disk.read_only = True
    partition.log.health.mark_offline("the file system is read-only")
    await replicas.remove([partition], at_once=True)
    await replicas.logs.delete([partition.log])
    m.disk.read_only = False
    assert durable_end(m.disk, "/data/t-0") == 0
    [log] = await replicas.logs.open_or_create([AssignedPartition(tp, partition.topic_id, {})])
    assert log.log_end_offset == 1
    assert log.recovery_point == 0, "nothing is synced yet"
    log.complete_flush(log.durability.flush_blocking(1))
    assert durable_end(m.disk, "/data/t-0") == 1


@broker_test
async def test_the_log_of_an_older_topic_of_the_same_name(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    await m.stop()
    m.disk.data("/data/t-0/partition.metadata")[:] = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    await m.start()
    client = await m.client()
    assert await client.read("t") == []
    assert (await client.produce("t", batch(b"b"))).base_offset == 0


@broker_test
async def test_a_log_that_cannot_be_opened_does_not_affect_the_others(
    m: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await m.client()
    await client.create_topic("t", 40)
    for index in range(40):
        await client.produce("t", batch(b"%d" % index), index)
    await m.stop()
    listdir = type(m.disk).listdir

    def refuse(self, path):  # type: ignore[no-untyped-def]
        if path == "/data/t-7":
            raise OSError(5, "Input/output error", path)
        return listdir(self, path)

    monkeypatch.setattr(type(m.disk), "listdir", refuse)
    await m.start()
    client = await m.client()
    for index in range(40):
        code = (await client.produce("t", batch(b"x"), index)).error_code
        assert code == (56 if index == 7 else 0)
    await asyncio.sleep(60)
    assert sum("log cannot be opened partition=t-7" in record.message for record in caplog.records) == 1
    monkeypatch.undo()
    await asyncio.sleep(11)
    assert await client.read("t", 0, 7) == [b"7"]


@broker_test(started=False)
async def test_stored_configs_that_do_not_fit_are_ignored(m: Machine, caplog: pytest.LogCaptureFixture) -> None:
    await m.start()
    logs: LogManager = m.broker.services.replicas.logs
    stored = {"retention.ms": "5", "max.message.bytes": "many", "no.such.config": "1", "segment.ms": "0"}
    for _ in range(3):
        config = logs.topic_config("t", stored)
    assert config.retention_ms == 5
    assert config.max_message_bytes == 1_048_588
    assert len([record for record in caplog.records if "config ignored" in record.message]) == 3
