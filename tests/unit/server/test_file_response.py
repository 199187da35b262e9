"""Large responses, which are read from the log while they are sent."""

import asyncio
import errno

import pytest

from kbroker.server.file_response import PIECE_BYTES
from kbroker.simulation.disk.file import SimFile
from protocol.errors import ErrorCode
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.unit.support.client import Client, batch, records_of, values_of
from tests.unit.support.simulated_broker import Machine, broker_test

MIB = 1 << 20
SIZE = 300_000
COUNT = 12
VALUES = [b"%02d" % number for number in range(COUNT)]


async def fill(client: Client, topic: str = "t", partitions: int = 1) -> None:
    await client.create_topic(topic, partitions)
    for partition in range(partitions):
        for value in VALUES:
            await client.produce(topic, batch(value, size=SIZE), partition)


def numbers(values: list[bytes]) -> list[bytes]:
    return [value[:2] for value in values]


@broker_test
async def test_the_response_has_the_bytes_of_the_log(m: Machine) -> None:
    client = await m.client()
    await fill(client)
    (segment,) = m.disk.find("t-0/00000000000000000000.log")
    complete = await client.fetch_partition("t", 0, partition_max_bytes=20 * MIB)
    assert records_of(complete) == bytes(m.disk.data(segment))
    cut = await client.fetch_partition("t", 3, partition_max_bytes=5 * SIZE + SIZE // 2)
    assert numbers(values_of(cut)) == VALUES[3:8], "complete batches only"


@broker_test
@pytest.mark.parametrize("cold", [0.3, 1.0])
async def test_pieces_that_are_not_in_memory_are_read_in_a_thread(m: Machine, cold: float) -> None:
    client = await m.client()
    await fill(client)
    m.disk.cold = cold
    for offset in range(COUNT):
        response = await client.fetch_partition("t", offset, partition_max_bytes=20 * MIB)
        assert numbers(values_of(response)) == VALUES[offset:]


@broker_test
async def test_responses_keep_their_order_and_other_connections_are_served_between_the_pieces(m: Machine) -> None:
    reader, other = await m.client(), await m.client()
    await fill(reader)
    order: list[str] = []
    large = reader.send_fetch({("t", 0): 0}, max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
    after = asyncio.ensure_future(reader.request(ApiVersionsRequest(), 0, ApiVersionsResponse))
    beside = asyncio.ensure_future(other.request(ApiVersionsRequest(), 0, ApiVersionsResponse))
    for name, response in (("large", large), ("after", after), ("beside", beside)):
        response.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
    await asyncio.gather(large, after, beside)
    assert order == ["beside", "large", "after"]


@broker_test
async def test_for_a_client_that_does_not_read_one_piece_is_in_memory(m: Machine) -> None:
    slow = await m.client()
    await fill(slow)
    slow.transport.pause_reading()
    waiting = slow.send_fetch({("t", 0): 0}, max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
    server = m.broker._server.context
    await m.until(lambda: server.unsent_bytes > 0)
    await asyncio.sleep(5)
    assert server.unsent_bytes <= 2 * PIECE_BYTES < COUNT * SIZE
    slow.transport.resume_reading()
    (topic,) = (await waiting).responses
    assert numbers(values_of(topic.partitions[0])) == VALUES
    assert server.unsent_bytes == 0


@broker_test
async def test_a_client_that_disconnects_while_it_is_sent(m: Machine) -> None:
    slow, other = await m.client(), await m.client()
    await fill(slow)
    slow.transport.pause_reading()
    slow.send_fetch({("t", 0): 0}, max_bytes=20 * MIB, partition_max_bytes=20 * MIB).cancel()
    server = m.broker._server.context
    await m.until(lambda: server.unsent_bytes > 0)
    slow.close()
    await m.until(lambda: len(m.broker._server.connections) == 1)
    assert server.unsent_bytes == 0
    assert numbers(values_of(await other.fetch_partition("t", 0, partition_max_bytes=20 * MIB))) == VALUES


@broker_test
async def test_a_read_error_while_it_is_sent_closes_the_connection_and_the_log(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, other = await m.client(), await m.client()
    await fill(reader)
    read = SimFile.pread_nowait

    def fail_after_first_piece(self: SimFile, size: int, offset: int) -> bytes | None:
        if PIECE_BYTES <= offset < 4 * PIECE_BYTES and size > 1000:
            raise OSError(errno.EIO, "bad sector")
        return read(self, size, offset)

    monkeypatch.setattr(SimFile, "pread_nowait", fail_after_first_piece)
    with pytest.raises(ConnectionResetError):
        await reader.fetch({("t", 0): 0}, max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
    assert (await other.fetch_partition("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@broker_test
async def test_a_segment_that_is_deleted_while_it_is_sent_arrives_complete(m: Machine) -> None:
    slow, other = await m.client(), await m.client()
    await fill(slow)
    slow.transport.pause_reading()
    waiting = slow.send_fetch({("t", 0): 0}, max_bytes=20 * MIB, partition_max_bytes=20 * MIB)
    await m.until(lambda: m.broker._server.context.unsent_bytes > 0)
    await other.delete_topic("t")
    await asyncio.sleep(300)
    assert m.disk.find("t-0/00000000000000000000.log") == []
    slow.transport.resume_reading()
    (topic,) = (await waiting).responses
    assert numbers(values_of(topic.partitions[0])) == VALUES
