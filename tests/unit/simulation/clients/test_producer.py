"""The producer against the real broker."""

import asyncio

from kbroker.simulation.checker.history import Outcome, Send
from kbroker.simulation.checker.index import acknowledged
from kbroker.simulation.clients.producer import ProducerConfig
from tests.unit.simulation.clients.program import Program, client_test, read_until

PLACE = ("t", 0)


async def values_in(program: Program, count: int, tp: tuple[str, int] = PLACE) -> list[int]:
    """Return the values of a partition, and assert that there are `count`."""
    consumer = program.consumer(f"reader of {count}")
    consumer.assign({tp: 0})
    values = [read.value for read in await read_until(consumer, count)]
    assert await consumer.poll() == []
    return values


@client_test
async def test_an_acknowledgement_that_promises_nothing_is_recorded_like_one_of_acks_0(program: Program) -> None:
    """As with acks=1 and several replicas: the next leader may not have the batch."""
    producer = program.producer(config=ProducerConfig(idempotent=False, acks=1, promises=False))
    operation = await program.send(producer, PLACE)
    assert (operation.outcome, program.actions(Send)[0].acks) == (Outcome.OK, 0)
    assert not acknowledged(operation)


@client_test
async def test_sends_without_a_response_are_unknown_and_the_epoch_is_bumped(program: Program) -> None:
    producer = program.producer(config=ProducerConfig(delivery_timeout_s=3), timeout_s=1)
    await program.send(producer, PLACE)
    program.cut_responses()
    sent = [program.send(producer, PLACE) for _ in range(3)]
    operations = await asyncio.gather(*sent)
    # Two of them were still queued, or were in flight with the first one.
    assert operations[0].outcome is Outcome.UNKNOWN
    program.heal()
    assert (await program.send(producer, PLACE)).outcome is Outcome.OK
    producer_id, epoch = producer.identity
    assert producer_id >= 0
    assert epoch == 1
    values = await values_in(program, program.machine.partition("t").log.log_end_offset)
    assert values == sorted(set(values))
    assert {0, 4} <= set(values)


@client_test
async def test_batch_that_was_never_sent_has_failed(program: Program) -> None:
    program.cut_requests()
    producer = program.producer(config=ProducerConfig(delivery_timeout_s=2), timeout_s=0.5)
    assert (await program.send(producer, PLACE)).outcome is Outcome.FAILED
    program.heal()
    assert (await program.send(producer, PLACE)).outcome is Outcome.OK
    assert producer.identity[1] == 0


@client_test
async def test_error_that_may_follow_the_append_is_unknown(program: Program) -> None:
    producer = program.producer(config=ProducerConfig(delivery_timeout_s=1))
    await program.send(producer, PLACE)
    program.machine.partition("t").log.health.mark_offline("broken by the test")
    operation = await program.send(producer, PLACE)
    assert (operation.outcome, operation.detail) == (Outcome.UNKNOWN, "KAFKA_STORAGE_ERROR")
    await program.machine.crash()
    await program.machine.start()
    assert (await program.send(producer, PLACE)).outcome is Outcome.OK
    assert producer.identity[1] == 1


@client_test(message_max_bytes=2_000)
async def test_rejected_batch_has_failed_and_the_others_continue(program: Program) -> None:
    producer = program.producer()
    producer.config.shape.max_padding = 50
    before = program.send(producer, PLACE)
    await before
    sent = [program.send(producer, PLACE, count) for count in (1, 900, 1, 1)]
    outcomes = [operation.outcome for operation in await asyncio.gather(*sent)]
    assert outcomes == [Outcome.OK, Outcome.FAILED, Outcome.OK, Outcome.OK]
    assert await values_in(program, 4) == [0, 1, 902, 903]


@client_test
async def test_send_with_acks_0_is_unknown(program: Program) -> None:
    producer = program.producer(config=ProducerConfig(idempotent=False, acks=0))
    assert (await program.send(producer, PLACE)).outcome is Outcome.UNKNOWN
    assert await values_in(program, 1) == [0]


@client_test
async def test_close_ends_every_send(program: Program) -> None:
    producer = program.producer()
    await program.send(producer, PLACE)
    program.cut_responses()
    sent = [program.send(producer, PLACE) for _ in range(7)]
    await asyncio.sleep(0.1)
    producer.close()
    outcomes = [operation.outcome for operation in await asyncio.gather(*sent)]
    # Five batches were in flight.
    assert outcomes == [Outcome.UNKNOWN] * 5 + [Outcome.FAILED] * 2
    assert (await program.send(producer, PLACE)).outcome is Outcome.FAILED
    program.heal()
