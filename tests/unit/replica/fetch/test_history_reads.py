"""Fetches below the log start offset, served from the archive of the topic."""

import asyncio
from types import SimpleNamespace

import pytest

from kbroker.common import KafkaError
from kbroker.replica.fetch.fetch_session import FetchPartition, FetchSession
from kbroker.replica.fetch.partition_reads import check_fetch
from kbroker.simulation.runtime.history_service import SimArchivedTopic
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.client import Client, batch, by_partition, errors, records_of, values_of
from tests.unit.support.history import ARCHIVE, archived_topic
from tests.unit.support.simulated_broker import Machine, broker_test


def values(numbers: range) -> list[bytes]:
    return [(b"%d" % number).ljust(50, b".") for number in numbers]


async def read(client: Client, topic: str = "t", offset: int = 0, **options: object) -> list[bytes]:
    """Read to the high watermark as a consumer does, and return the values."""
    found: list[bytes] = []
    while True:
        data = await client.fetch_partition(topic, offset, max_wait_ms=500, **options)
        assert data.error_code == 0
        headers = list(iter_headers(records_of(data)))
        found += values_of(data, offset)
        if headers:
            assert headers[-1][1].next_offset > offset
            offset = headers[-1][1].next_offset
        if offset >= data.high_watermark:
            return found


@broker_test(connections_max_idle_ms=-1)
async def test_records_that_the_log_has_deleted(m: Machine) -> None:
    """Across the border every record comes once."""
    client = await archived_topic(m)
    assert m.partition("t").log.log_start_offset == 15
    for offset in (0, 7, 14, 15, 19):
        assert await read(client, offset=offset) == values(range(offset, 20))
    assert await read(client, version=4) == await read(client, isolation_level=1) == values(range(20))
    assert await read(client, partition_max_bytes=1) == values(range(20))
    data = await client.fetch_partition("t", 3, max_wait_ms=500)
    assert (data.high_watermark, data.log_start_offset) == (20, 0)


@broker_test(connections_max_idle_ms=-1)
async def test_max_bytes(m: Machine) -> None:
    """A response has at least one batch, and no more than the consumer wants."""
    client = await archived_topic(m)
    await client.fetch_partition("t", 0, max_wait_ms=500)
    size = len(batch(b"", size=50))
    for max_bytes, count in ((1, 1), (size, 1), (3 * size, 3)):
        data = await client.fetch_partition("t", 2, partition_max_bytes=max_bytes, max_wait_ms=500)
        assert values_of(data) == values(range(2, 2 + count))


@broker_test(connections_max_idle_ms=-1)
async def test_an_offset_before_the_archive(m: Machine) -> None:
    """It is out of range, as one below the log of another topic."""
    client = await archived_topic(m)
    m.archives.topics[ARCHIVE, "t"].partitions[0].start = 5
    assert (await client.fetch_partition("t", 4, max_wait_ms=500)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await read(client, offset=5) == values(range(5, 20))
    await client.alter_topic("t", kbroker_archive_table="")
    assert (await client.fetch_partition("t", 5, max_wait_ms=500)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@broker_test(connections_max_idle_ms=-1)
async def test_archives_that_consumers_may_not_read(m: Machine) -> None:
    """No archive, another topic's, one with aborted records."""
    client = await archived_topic(m)
    topic = m.archives.topics.pop((ARCHIVE, "t"))
    out_of_range = ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await client.fetch_partition("t", 0, max_wait_ms=500)).error_code == out_of_range
    m.archives.topics[ARCHIVE, "t"] = SimArchivedTopic("another", partitions=topic.partitions)
    await asyncio.sleep(20)
    assert (await client.fetch_partition("t", 0, max_wait_ms=500)).error_code == out_of_range
    topic.committed_only = False
    m.archives.topics[ARCHIVE, "t"] = topic
    await asyncio.sleep(20)
    assert (await client.fetch_partition("t", 0, max_wait_ms=500, isolation_level=1)).error_code == out_of_range
    assert await read(client) == values(range(20))


@broker_test(connections_max_idle_ms=-1)
async def test_a_damaged_archive(m: Machine) -> None:
    """Only its partition fails, not at once again and again, and recovers."""
    client = await archived_topic(m)
    await client.create_topic("other")
    m.archives.failure = "damaged"
    response = await client.fetch({("t", 0): 0, ("other", 0): 0}, max_wait_ms=1000)
    assert errors(response) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, ("other", 0): ErrorCode.NONE}
    began = m.elapsed_ms
    assert (await client.fetch_partition("t", 0, max_wait_ms=1000)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert m.elapsed_ms - began >= 1000
    await client.produce("other", batch(b"x"))
    response = await client.fetch({("t", 0): 0, ("other", 0): 0}, max_wait_ms=1000)
    assert values_of(by_partition(response)["other", 0]) == [b"x"]
    m.archives.failure = None
    await asyncio.sleep(3)
    assert await read(client) == values(range(20))


@broker_test(connections_max_idle_ms=-1)
async def test_a_slow_archive(m: Machine) -> None:
    """Other partitions of the request do not wait; after a time limit the partition fails."""
    client = await archived_topic(m)
    await client.create_topic("other")
    m.archives.is_slow = True
    waiting = client.send_fetch({("t", 0): 0, ("other", 0): 0}, max_wait_ms=100_000)
    await asyncio.sleep(1)
    producer = await m.client()
    producer.ids = client.ids
    await producer.produce("other", batch(b"x"))
    assert values_of(by_partition(await waiting)["other", 0]) == [b"x"]
    assert m.elapsed_ms < 5_000
    data = await client.fetch_partition("t", 0, max_wait_ms=100_000)
    assert data.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert 14_000 < m.elapsed_ms < 17_000
    m.archives.is_slow = False
    await asyncio.sleep(3)
    assert await read(client) == values(range(20))


@broker_test(connections_max_idle_ms=-1)
async def test_the_process_is_killed(m: Machine) -> None:
    """It is started again after a pause, and stopped when nobody reads history."""
    client = await archived_topic(m)
    assert m.archives.services == []
    assert await read(client) == values(range(20))
    await asyncio.sleep(12)
    waiting = client.send_fetch({("t", 0): 0}, max_wait_ms=1000)
    await asyncio.sleep(0.001)
    m.archives.services[0].kill()
    assert errors(await waiting) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    await asyncio.sleep(4)
    assert await read(client) == values(range(20))
    assert len(m.archives.services) == 2
    await asyncio.sleep(400)
    assert m.archives.services[1].is_killed
    assert await read(client) == values(range(20))
    assert len(m.archives.services) == 3


@broker_test(connections_max_idle_ms=-1)
async def test_a_session(m: Machine) -> None:
    """An incremental fetch session is notified at the end of a read."""
    client = await archived_topic(m)
    await client.create_topic("other")
    response = await client.fetch({("t", 0): 0, ("other", 0): 0}, session=(0, 0))
    session, epoch, offset = response.session_id, 1, 0
    found: list[bytes] = []
    while offset < 20:
        changed = {("t", 0): offset} if offset else {}
        response = await client.fetch(changed, session=(session, epoch), max_wait_ms=10_000, partition_max_bytes=200)
        epoch += 1
        data = by_partition(response)["t", 0]
        found += values_of(data, offset)
        offset = list(iter_headers(records_of(data)))[-1][1].next_offset
    assert found == values(range(20))
    assert m.elapsed_ms < 10_000


@broker_test(connections_max_idle_ms=-1)
async def test_nothing_is_left_before_the_log(m: Machine) -> None:
    """What was lost before it was archived is stepped over; the position moves also if the log is empty."""
    client = await archived_topic(m)
    archived = m.archives.topics[ARCHIVE, "t"].partitions[0]
    del archived.batches[10:]
    archived.end = 10
    assert await read(client, offset=12) == values(range(15, 20))
    assert await read(client) == values(range(10)) + values(range(15, 20))
    m.partition("t").log.delete_records(20)
    await asyncio.sleep(11)
    for version in (4, 12):
        assert await read(client, version=version) == values(range(10))


@broker_test(connections_max_idle_ms=-1)
async def test_retention_keeps_what_is_not_archived(m: Machine) -> None:
    """Also while the archive cannot be read."""
    client = await archived_topic(m, kept=20, kbroker_archive_before_delete=True)
    partition = m.partition("t")
    archived = m.archives.topics[ARCHIVE, "t"].partitions[0]
    archived.end = 10
    topic = m.archives.topics.pop((ARCHIVE, "t"))
    await client.alter_topic("t", retention_ms=1000)
    await asyncio.sleep(1000)
    assert partition.log.log_start_offset == 0
    m.archives.topics[ARCHIVE, "t"] = topic
    await asyncio.sleep(1000)
    assert 8 <= partition.log.log_start_offset <= 10
    archived.end = 20
    await asyncio.sleep(1000)
    assert partition.log.log_start_offset > 18
    assert await read(client) == values(range(20))
    assert (await client.delete_records("t", 20))[0] == ErrorCode.POLICY_VIOLATION


@broker_test
async def test_followers_do_not_get_history(m: Machine) -> None:
    """Their logs must have what the leader's has: they begin anew at its start."""
    client = await archived_topic(m)
    partition = m.partition("t")
    former, partition.state.followers = partition.state.followers, {7: SimpleNamespace(broker_epoch=0)}  # type: ignore[assignment, dict-item]
    session = FetchSession(0, False, 0)
    session.replica_id = 7
    fetched = FetchPartition(session, "t", (0, partition.leader_epoch, 3, -1, 1 << 20, 0))
    request = SimpleNamespace(replica_id=7, replica_epoch=1, rack_id=None)
    with pytest.raises(KafkaError) as raised:
        check_fetch(partition, fetched, request)  # type: ignore[arg-type]
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    partition.state.followers = former
    assert await read(client, offset=3) == values(range(3, 20))


@broker_test(connections_max_idle_ms=-1)
async def test_views_and_expired_records(m: Machine) -> None:
    """Read filters apply to archived records too."""
    client = await archived_topic(m, kbroker_ttl_ms=3_600_000)
    await client.create_topic("v", kbroker_view_of="t", kbroker_view_filter="KEYS in (nothing)")
    assert await read(client) == values(range(20))
    assert await read(client, "v") == []
    await asyncio.sleep(7200)
    assert await read(client) == []
    await client.alter_topic("t", kbroker_ttl_ms=0)
    assert await read(client) == values(range(20))
    await client.alter_topic("v", kbroker_view_filter="*")
    assert await read(client, "v") == values(range(20))
