"""The consumer of assigned partitions against the real broker."""

import asyncio

import pytest

from kbroker.simulation.checker.history import Assign, Outcome
from kbroker.simulation.clients.consumer import Consumer, ConsumerConfig
from kbroker.simulation.clients.producer import ProducerConfig
from kbroker.simulation.clients.records import CorruptRecordError, RecordShape
from tests.unit.simulation.clients.program import LOG, PLACE, Program, client_test, read_until


async def fill(program: Program, batches: int, size: int = 5, partitions: int = 1, name: str = "producer") -> None:
    config = ProducerConfig(shape=RecordShape(max_padding=400, codecs=(0, 1, 2, 3, 4)))
    producer = program.producer(name, config=config)
    await asyncio.gather(
        *(program.send(producer, ("t", index), size) for _ in range(batches) for index in range(partitions))
    )


def resets(program: Program) -> list[Assign]:
    return [action for action in program.actions(Assign) if action.reason == "reset"]


async def read_and_lose(program: Program, config: ConsumerConfig) -> Consumer:
    """Return a consumer that is at offset 20 of a log that was truncated to 10 and has grown to 25."""
    await fill(program, 2)
    size = program.log_size()
    await fill(program, 2, name="second")
    consumer = program.consumer(config=config)
    consumer.assign({PLACE: 0})
    await read_until(consumer, 20)
    await program.lose_log_after(size, offset=10)
    await fill(program, 3, name="third")
    return consumer


@pytest.mark.parametrize("sends_last_fetched_epoch", [True, False])
@client_test
async def test_consumer_goes_back_to_where_the_leaders_log_diverges(
    program: Program, sends_last_fetched_epoch: bool
) -> None:
    consumer = await read_and_lose(program, ConsumerConfig(sends_last_fetched_epoch=sends_last_fetched_epoch))
    reads = await read_until(consumer, 15)
    assert [read.offset for read in reads] == list(range(10, 25))
    assert [action.positions for action in resets(program)] == [{PLACE: 10}]


@client_test
async def test_broker_reports_the_diverging_epoch(program: Program) -> None:
    """KIP-595: the position counts as validated, so only the Fetch response reports the divergence."""
    consumer = await read_and_lose(program, ConsumerConfig(sends_last_fetched_epoch=True))
    await consumer.cluster.refresh_metadata(["t"])
    consumer.positions[PLACE].validated_epoch = consumer.cluster.leaders[PLACE].epoch
    assert [read.offset for read in await read_until(consumer, 15)] == list(range(10, 25))
    assert any(operation.detail == "diverging epoch" for operation in program.history.operations)


@client_test(is_checked=False)
async def test_recreated_topic_is_read_from_its_start(program: Program) -> None:
    await fill(program, 3)
    consumer = program.consumer()
    consumer.assign({PLACE: 0})
    await read_until(consumer, 15)
    client = await program.machine.client()
    await client.delete_topic("t")
    assert await consumer.poll() == []
    await client.create_topic("t")
    await fill(program, 1, name="second")
    assert [read.offset for read in await read_until(consumer, 5)] == list(range(5))


@client_test
async def test_corrupt_batch_raises_and_is_not_returned(program: Program) -> None:
    await fill(program, 1)
    size = program.log_size()
    await fill(program, 1, name="second")
    consumer = program.consumer()
    program.machine.disk.data(LOG)[size + 70] ^= 1
    consumer.assign({PLACE: 0})
    assert [read.offset for read in await read_until(consumer, 5)] == list(range(5))
    with pytest.raises(CorruptRecordError, match="wrong CRC") as raised:
        await consumer.poll()
    assert (raised.value.tp, raised.value.offset, raised.value.next_offset) == (PLACE, 5, 10)
    assert "wrong CRC" in program.history.operations[-1].detail
    assert program.history.operations[-1].outcome is Outcome.FAILED
    consumer.seek(PLACE, 10)
    assert await consumer.poll() == []


@client_test
async def test_cancelled_poll_returns_no_records(program: Program) -> None:
    consumer = program.consumer(config=ConsumerConfig(max_wait_ms=10_000))
    consumer.assign({PLACE: 0})
    polling = program.machine.loop.create_task(consumer.poll())
    await asyncio.sleep(1)
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
    assert program.history.operations[-1].outcome is Outcome.FAILED
    await fill(program, 1)
    assert len(await read_until(consumer, 5)) == 5
