"""The consumer of assigned partitions against the real broker."""

import asyncio
from random import Random

import pytest

from kbroker.simulation.checker.history import Assign, Outcome, Poll
from kbroker.simulation.clients.connections.versions import draw_older_versions
from kbroker.simulation.clients.consumer import Consumer, ConsumerConfig, Position
from kbroker.simulation.clients.producer import ProducerConfig
from kbroker.simulation.clients.records import CorruptRecordError, RecordShape
from protocol.apis import ApiKey
from tests.sampling import third_of
from tests.unit.simulation.clients.program import LOG, PLACE, Program, client_test, read_until


async def fill(program: Program, batches: int, size: int = 5, partitions: int = 1, name: str = "producer") -> None:
    config = ProducerConfig(shape=RecordShape(max_padding=400, codecs=(0, 1, 2, 3, 4)))
    producer = program.producer(name, config=config)
    await asyncio.gather(
        *(program.send(producer, ("t", index), size) for _ in range(batches) for index in range(partitions))
    )


def resets(program: Program) -> list[Assign]:
    return [action for action in program.actions(Assign) if action.reason == "reset"]


@pytest.mark.parametrize("seed", third_of(range(24)))
@client_test(partitions=3)
async def test_all_configurations_read_the_same_records(program: Program, seed: int) -> None:
    await fill(program, 8, partitions=3)
    random = Random(seed)
    caps = draw_older_versions(random) if seed % 2 else {}
    config = ConsumerConfig.draw(random, committed_only=seed % 3 == 0)
    consumer = program.consumer(config=config, caps=caps)
    consumer.assign({("t", index): 0 for index in range(3)})
    reads = await read_until(consumer, 120)
    assert sorted(read.value for read in reads) == list(range(120))
    for index in range(3):
        assert [read.offset for read in reads if read.tp[1] == index] == list(range(40))
    assert all(poll.committed_only is config.committed_only for poll in program.actions(Poll))


@client_test(is_checked=False)
async def test_deleted_position_is_reset_to_the_log_start(program: Program) -> None:
    await fill(program, 4)
    consumer = program.consumer()
    consumer.assign({PLACE: 2})
    await (await program.machine.client()).delete_records("t", 12)
    reads = await read_until(consumer, 8)
    assert [read.offset for read in reads] == list(range(12, 20))
    assert [action.positions for action in resets(program)] == [{PLACE: 12}]


@client_test
async def test_first_fetch_version_with_topic_ids(program: Program) -> None:
    await fill(program, 1)
    consumer = program.consumer(caps={ApiKey.FETCH: 13})
    consumer.assign({PLACE: 0})
    assert len(await read_until(consumer, 5)) == 5


@client_test
async def test_position_beyond_the_end_is_reset_to_the_log_start(program: Program) -> None:
    await fill(program, 1)
    consumer = program.consumer()
    consumer.assign({PLACE: 77})
    assert [read.offset for read in await read_until(consumer, 5)] == list(range(5))


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


@client_test
async def test_an_epoch_whose_records_were_removed_is_no_divergence(program: Program) -> None:
    """A replica that was added after a compaction does not know the epoch; others know it, and an older one's end."""
    await fill(program, 2)
    for _ in range(2):
        await program.machine.crash()
        await program.machine.start()
    await fill(program, 1, name="second")
    consumer = program.consumer(config=ConsumerConfig(sends_last_fetched_epoch=True))
    await consumer.cluster.refresh_metadata(["t"])
    latest = consumer.cluster.leaders[PLACE].epoch
    consumer.assign({PLACE: Position(7, latest - 1, validated_epoch=latest)})
    assert await consumer.poll() == []
    assert consumer.positions[PLACE] == Position(7, validated_epoch=latest)
    assert [read.offset for read in await read_until(consumer, 8)] == list(range(7, 15))
    assert [action.positions for action in resets(program)] == [{PLACE: 7}]


@client_test
async def test_consumer_ignores_a_leader_of_an_epoch_before_its_position(program: Program) -> None:
    """A broker that is cut off describes the leader that was there before, whose log may end earlier."""
    await fill(program, 1)
    consumer = program.consumer()
    consumer.assign({PLACE: Position(3, epoch=7)})
    assert await consumer.poll() == []
    assert PLACE not in consumer.cluster.leaders
    assert consumer.positions[PLACE].offset == 3
    assert not resets(program)


@client_test(partitions=3)
async def test_broken_fetch_session_is_recreated(program: Program) -> None:
    await fill(program, 3, partitions=3)
    consumer = program.consumer()
    consumer.assign({("t", index): 0 for index in range(3)})
    await read_until(consumer, 45)
    program.reset_connections()
    await fill(program, 2, partitions=3, name="second")
    await read_until(consumer, 30)
    await program.machine.crash()
    await program.machine.start()
    await fill(program, 2, partitions=3, name="third")
    assert len(await read_until(consumer, 30)) == 30
    # The broker has evicted the session and responds with FETCH_SESSION_ID_NOT_FOUND.
    program.machine.broker.services.fetching.sessions._sessions.clear()
    await fill(program, 1, partitions=3, name="fourth")
    assert len(await read_until(consumer, 15)) == 15
    assert any(operation.detail == "FETCH_SESSION_ID_NOT_FOUND" for operation in program.history.operations)


@client_test(partitions=3)
async def test_partitions_are_added_and_removed_in_a_session(program: Program) -> None:
    await fill(program, 2, partitions=3)
    consumer = program.consumer()
    consumer.assign({("t", 0): 0})
    await read_until(consumer, 10)
    consumer.assign({("t", 1): 0, ("t", 2): 5})
    reads = await read_until(consumer, 15)
    assert {read.tp for read in reads} == {("t", 1), ("t", 2)}
    consumer.seek(("t", 1), 3)
    assert [read.offset for read in await read_until(consumer, 7)] == list(range(3, 10))
    consumer.assign({})
    assert await consumer.poll() == []
    assert len(program.machine.broker.services.fetching.sessions.all()) == 1


@client_test
async def test_assign_copies_the_positions(program: Program) -> None:
    await fill(program, 1)
    starts = {PLACE: Position(2)}
    consumer = program.consumer()
    consumer.assign(starts)
    await read_until(consumer, 3)
    assert starts == {PLACE: Position(2)}
    assert consumer.committable() == {PLACE: (5, 0)}


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
async def test_poll_without_a_broker_returns_nothing(program: Program) -> None:
    await fill(program, 1)
    consumer: Consumer = program.consumer(timeout_s=0.5)
    consumer.assign({PLACE: 0})
    await program.machine.crash()
    for _ in range(5):
        assert await consumer.poll() == []
    await program.machine.start()
    assert len(await read_until(consumer, 5)) == 5
    program.cut_responses()
    program.history.note("story", "responses are lost")
    for _ in range(5):
        assert await consumer.poll() == []
    program.heal()
    await fill(program, 1, name="second")
    assert len(await read_until(consumer, 5)) == 5


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


@client_test
async def test_a_preferred_replica_that_cannot_be_reached_is_replaced_by_the_leader(program: Program) -> None:
    await program.send(program.producer(), PLACE, 3)
    consumer = program.consumer()
    consumer.assign({PLACE: 0})
    consumer.positions[PLACE].preferred_replica = 7
    assert await consumer.poll() == []
    assert [read.value for read in await read_until(consumer, 3)] == [0, 1, 2]
