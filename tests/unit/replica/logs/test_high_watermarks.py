"""replication-offset-checkpoint: the high watermarks of partitions with several replicas."""

import asyncio

from kbroker.common import TopicPartition
from kbroker.storage.checkpoint_files import decode_offsets
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import Machine, broker_test

FILE = "/data/replication-offset-checkpoint"
T0 = TopicPartition("t", 0)


@broker_test
async def test_a_lone_broker_writes_none(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    await asyncio.sleep(70)
    await m.restart()
    assert not m.disk.exists(FILE)


@broker_test
async def test_they_are_written_when_they_change_and_at_the_stop(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    m.broker.services.replicas.maintenance.mark_replicated(m.partition("t"), 3)
    await client.produce("t", batch(b"a"))
    await asyncio.sleep(6)
    assert decode_offsets(m.disk.read(FILE)) == {T0: 1}
    written: list[str] = []
    m.disk.trace = lambda kind, path, size: written.append(path) if path.startswith(FILE) else None
    await asyncio.sleep(20)
    assert written == []
    await client.produce("t", batch(b"b"))
    await m.broker.stop()
    assert decode_offsets(m.disk.read(FILE)) == {T0: 2}


@broker_test
async def test_a_topic_of_the_same_name_does_not_inherit_one(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    maintenance = m.broker.services.replicas.maintenance
    maintenance.mark_replicated(m.partition("t"), 3)
    await client.produce("t", batch(b"a"))
    await asyncio.sleep(6)
    await client.delete_topic("t")
    assert decode_offsets(m.disk.read(FILE)) == {}
    assert not maintenance.replicated


@broker_test
async def test_a_damaged_file_is_replaced(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    await client.produce("t", batch(b"a"))
    await m.broker.stop()
    m.disk.write_atomic(FILE, b"\x00" * 40)
    await m.start()
    log = m.partition("t").log
    assert (log.repairs, log.log_end_offset, log.checkpointed_high_watermark) == ([], 1, 0)
    m.broker.services.replicas.maintenance.mark_replicated(m.partition("t"), 3)
    await asyncio.sleep(6)
    assert decode_offsets(m.disk.read(FILE)) == {T0: 1}
