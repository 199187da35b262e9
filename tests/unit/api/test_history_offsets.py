"""ListOffsets of topics with an archive."""

import asyncio

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.unit.support.client import Client, batch
from tests.unit.support.history import ARCHIVE, archived_topic
from tests.unit.support.simulated_broker import Machine, broker_test

EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -2, -4, -5, -6
# Before the time of the simulated machine, as far as a broker accepts.
AT = 1_799_000_000_000


async def list_offset(client: Client, timestamp: int, isolation_level: int = 0) -> tuple[int, int, int]:
    """Return the error code, the offset and the timestamp."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    (row,) = (await client.request(request, 11, ListOffsetsResponse)).topics[0].partitions
    return row.error_code, row.offset, row.timestamp


@broker_test
async def test_the_earliest_offset(m: Machine) -> None:
    """It is the archive's if the topic says so, and if the consumer may read it."""
    client = await archived_topic(m)
    assert await list_offset(client, EARLIEST) == (0, 15, -1)
    assert m.archives.calls == {}
    await client.alter_topic("t", kbroker_archive_earliest=True)
    m.archives.topics[ARCHIVE, "t"].partitions[0].start = 3
    assert await list_offset(client, EARLIEST) == (0, 3, -1)
    assert await list_offset(client, EARLIEST_LOCAL) == (0, 15, -1)
    m.archives.topics[ARCHIVE, "t"].committed_only = False
    await asyncio.sleep(20)
    assert await list_offset(client, EARLIEST, isolation_level=1) == (0, 15, -1)
    del m.archives.topics[ARCHIVE, "t"]
    await asyncio.sleep(20)
    assert await list_offset(client, EARLIEST) == (0, 15, -1)


@broker_test
@pytest.mark.parametrize(("number", "offset"), [(-5, 0), (0, 0), (7, 7), (14, 14), (15, 15), (19, 19), (20, -1)])
async def test_an_offset_by_time(m: Machine, number: int, offset: int) -> None:
    """The archive is searched first, then the log."""
    client = await archived_topic(m, at_ms=AT)
    found = -1 if offset < 0 else AT + 1000 * offset
    assert await list_offset(client, AT + 1000 * number) == (0, offset, found)


@broker_test
async def test_an_archive_that_cannot_be_read(m: Machine) -> None:
    """Without it consumers might miss records, so they have to retry."""
    client = await archived_topic(m, at_ms=AT)
    m.archives.failure = "unavailable"
    assert await list_offset(client, AT) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)
    assert await list_offset(client, EARLIEST_LOCAL) == (0, 15, -1)


@broker_test
async def test_the_lag_of_an_archive(m: Machine) -> None:
    """What is not archived yet, and since when."""
    client = await archived_topic(m, at_ms=AT)
    assert await list_offset(client, PENDING_UPLOAD) == (0, 20, -1)
    assert await list_offset(client, LATEST_TIERED) == (0, 19, -1)
    await client.produce("t", batch(b"new", at_ms=AT + 99))
    assert await list_offset(client, PENDING_UPLOAD) == (0, 20, AT + 99)
    await client.alter_topic("t", kbroker_archive_table="")
    assert await list_offset(client, PENDING_UPLOAD) == (0, -1, -1)
