"""The producer against the real broker."""

import asyncio

from kbroker.simulation.clients.producer import ProducerConfig
from kbroker.simulation.clients.values import Shape
from kbroker.simulation.history import Outcome, Send
from tests.unit.harness import Machine, story
from tests.unit.simulation.clients.program import Program, acknowledged, read_until

PLACE = ("t", 0)


@story
async def test_what_was_sent_is_read_where_the_broker_said(machine: Machine) -> None:
    program = Program(machine)
    await (await machine.client()).create_topic("t")
    producer, consumer = program.producer(), program.consumer()
    operations = [await program.send(producer, PLACE, count) for count in (1, 20, 3)]
    assert [operation.outcome for operation in operations] == [Outcome.OK] * 3
    consumer.assign({PLACE: 0})
    reads = await read_until(consumer, 24)
    assert [read.value for read in reads] == list(range(24))
    sends = [operation.action for operation in operations if isinstance(operation.action, Send)]
    assert [send.base_offset for send in sends] == [0, 1, 21]
    assert [send.order for send in sends] == [0, 1, 2]
    program.close()


@story
async def test_resets_make_no_duplicates_and_no_disorder(machine: Machine) -> None:
    program = Program(machine)
    await (await machine.client()).create_topic("t", 3)
    shape = Shape(max_padding=500, keys=3, codecs=(0, 1, 2, 3, 4))
    producer = program.producer(config=ProducerConfig(shape=shape))
    operations = []
    for number in range(60):
        operations += [program.send(producer, ("t", index), 5) for index in range(3)]
        if number % 7 == 0:
            program.reset_connections()
        await asyncio.sleep(0.001 * (number % 5))
    ended = await asyncio.gather(*operations)
    assert len(acknowledged(ended)) == 900
    consumer = program.consumer()
    consumer.assign({("t", index): 0 for index in range(3)})
    reads = await read_until(consumer, 900)
    for index in range(3):
        values = [read.value for read in reads if read.place[1] == index]
        assert values == sorted(values)
    assert sorted(read.value for read in reads) == list(range(900))
    assert await consumer.poll() == []
    program.close()
