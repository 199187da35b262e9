"""A broker notices that it cannot write to its disk, and that it can again."""

import asyncio
import errno

from kbroker.metadata.image import WriteHealth
from kbroker.replica.logs.disk_health import OK_PERIOD_MS, PROBE_FILE
from protocol.errors import ErrorCode
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_broker import Machine, broker_test


async def refuse(client: Client) -> None:
    result = await client.produce("t", batch(b"a"))
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@broker_test
async def test_a_full_disk_is_noticed_with_the_first_append(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t")
    monitor = m.broker.services.replicas.write_health
    m.disk.capacity = m.disk.used
    await asyncio.sleep(60)
    assert monitor.health is WriteHealth.OK, "a lone broker does not probe its disk"
    await refuse(client)
    await asyncio.sleep(0.1)
    assert (monitor.health, monitor.error) == (WriteHealth.FAILING, "No space left on device")
    m.disk.capacity = None
    await asyncio.sleep(3)
    assert monitor.health is WriteHealth.PROBATION
    await asyncio.sleep(6)
    assert (monitor.health, monitor.error) == (WriteHealth.OK, "")
    assert not m.disk.exists(f"/data/{PROBE_FILE}")


@broker_test
async def test_appends_that_fail_while_probes_succeed(m: Machine) -> None:
    """Such as those to a file that has the maximum size of the file system or of the process."""
    client = await m.client()
    await client.create_topic("t")
    monitor = m.broker.services.replicas.write_health
    for health in (WriteHealth.OK, WriteHealth.FAILING):
        m.disk.faults.fail_next("write", lambda path: path.endswith(".log"), errno.EFBIG)
        await refuse(client)
        await asyncio.sleep(2)
        assert monitor.health is health


@broker_test
async def test_an_idle_broker_of_a_cluster_probes_its_disk(m: Machine) -> None:
    monitor = m.broker.services.replicas.write_health
    monitor.start(is_in_cluster=True)
    m.disk.read_only = True
    await asyncio.sleep(OK_PERIOD_MS / 1000 + 0.1)
    assert (monitor.health, monitor.error) == (WriteHealth.FAILING, "Read-only file system")
    m.disk.read_only = False
