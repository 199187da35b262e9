"""The producer against the real broker."""

import asyncio
from itertools import chain

import pytest

from kbroker.simulation.checker.history import Note, Outcome, Send
from kbroker.simulation.checker.index import acknowledged
from kbroker.simulation.clients.connections.versions import draw_older_versions
from kbroker.simulation.clients.producer import ProducerConfig
from kbroker.simulation.clients.records import RecordShape
from protocol.apis import ApiKey
from tests.sampling import third_of
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
async def test_records_are_read_at_their_acknowledged_offsets(program: Program) -> None:
    producer = program.producer()
    operations = [await program.send(producer, PLACE, count) for count in (1, 20, 3)]
    assert [operation.outcome for operation in operations] == [Outcome.OK] * 3
    assert await values_in(program, 24) == list(range(24))
    sends = program.actions(Send)
    assert [send.base_offset for send in sends] == [0, 1, 21]
    assert [send.order for send in sends] == [0, 1, 2]


@client_test(partitions=3)
async def test_connection_resets_cause_no_duplicates_and_no_reordering(program: Program) -> None:
    shape = RecordShape(max_padding=500, keys=3, codecs=(0, 1, 2, 3, 4))
    producer = program.producer(config=ProducerConfig(shape=shape))
    sent = []
    for number in range(60):
        sent += [program.send(producer, ("t", index), 5) for index in range(3)]
        if number % 7 == 0:
            program.reset_connections()
        await asyncio.sleep(0.001 * (number % 5))
    assert {operation.outcome for operation in await asyncio.gather(*sent)} == {Outcome.OK}
    values = [await values_in(program, 300, ("t", index)) for index in range(3)]
    assert values == [sorted(each) for each in values]
    assert sorted(chain(*values)) == list(range(900))


@client_test
async def test_an_acknowledgement_that_promises_nothing_is_recorded_like_one_of_acks_0(program: Program) -> None:
    """As with acks=1 and several replicas: the next leader may not have the batch."""
    producer = program.producer(config=ProducerConfig(idempotent=False, acks=1, promises=False))
    operation = await program.send(producer, PLACE)
    assert (operation.outcome, program.actions(Send)[0].acks) == (Outcome.OK, 0)
    assert not acknowledged(operation)


@client_test
async def test_lost_acknowledgement_is_retried(program: Program) -> None:
    producer = program.producer(timeout_s=0.5)
    await program.send(producer, PLACE)
    program.cut_responses()
    sent = [program.send(producer, PLACE) for _ in range(5)]
    await asyncio.sleep(2)
    assert program.machine.partition("t").log.log_end_offset > 1
    healed = program.history.record("story", Note("the network is healed"))
    program.heal()
    operations = await asyncio.gather(*sent)
    assert [operation.outcome for operation in operations] == [Outcome.OK] * 5
    attempted = [operation.action.attempted for operation in operations if isinstance(operation.action, Send)]
    assert all(step is not None and step >= healed.begun for step in attempted)
    assert await values_in(program, 6) == list(range(6))


@client_test
async def test_plain_producer_may_duplicate_a_retry(program: Program) -> None:
    producer = program.producer(config=ProducerConfig(idempotent=False, acks=1), timeout_s=0.5)
    await program.send(producer, PLACE)
    program.cut_responses()
    sent = program.send(producer, PLACE)
    await program.machine.until(lambda: program.machine.partition("t").log.log_end_offset > 1)
    await asyncio.sleep(1)
    program.heal()
    assert (await sent).outcome is Outcome.OK
    assert set(await values_in(program, program.machine.partition("t").log.log_end_offset)) == {0, 1}
    assert program.machine.partition("t").log.log_end_offset > 2


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
async def test_lost_producer_state_bumps_the_epoch(program: Program) -> None:
    producer = program.producer()
    for _ in range(4):
        await program.send(producer, PLACE, 2)
    size = program.log_size()
    for _ in range(4):
        await program.send(producer, PLACE, 2)
    await program.lose_log_after(size, offset=8)
    # The broker knows this producer, with another sequence.
    assert (await program.send(producer, PLACE, 2)).outcome is Outcome.OK
    assert producer.identity[1] == 1
    assert await values_in(program, 10) == [*range(8), 16, 17]


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


@client_test(partitions=0)
async def test_producer_waits_for_a_missing_topic(program: Program) -> None:
    producer = program.producer()
    sent = program.send(producer, PLACE)
    await asyncio.sleep(1)
    assert not sent.done()
    await (await program.machine.client()).create_topic("t")
    assert (await sent).outcome is Outcome.OK


@client_test(is_checked=False)
async def test_producer_uses_the_id_of_a_recreated_topic(program: Program) -> None:
    producer = program.producer()
    await program.send(producer, PLACE)
    client = await program.machine.client()
    await client.delete_topic("t")
    await client.create_topic("t")
    operation = await program.send(producer, PLACE)
    assert operation.outcome is Outcome.OK
    assert isinstance(operation.action, Send)
    assert operation.action.base_offset == 0


@pytest.mark.parametrize("seed", third_of(range(8)))
@client_test
async def test_older_versions(program: Program, seed: int) -> None:
    caps = draw_older_versions(program.random("caps"))
    producer = program.producer(caps=caps)
    assert caps[ApiKey.PRODUCE] <= 13
    for _ in range(5):
        assert (await program.send(producer, PLACE, 3)).outcome is Outcome.OK
    assert await values_in(program, 15) == list(range(15))


@client_test
async def test_restarted_producer_sends_its_previous_identity(program: Program) -> None:
    producer = program.producer()
    await program.send(producer, PLACE)
    second = program.producer("second", config=ProducerConfig(previous=producer.identity))
    await program.send(second, PLACE)
    assert second.identity[0] >= 0
    assert second.identity != producer.identity
