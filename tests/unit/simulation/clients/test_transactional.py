"""Transactional producers against the real broker, in both versions of transactions."""

import asyncio
from collections.abc import Iterable

import pytest

from kbroker.simulation.checker.history import EndTransaction, Outcome, TopicPartition
from kbroker.simulation.clients.connections.coordinator import AbortableError, FatalError
from kbroker.simulation.clients.connections.versions import Caps, draw_older_transactional_versions
from kbroker.simulation.clients.consumer import ConsumerConfig
from kbroker.simulation.clients.group_member import Member, MemberConfig
from kbroker.simulation.clients.group_offsets import Membership, StandaloneGroupOffsets
from kbroker.simulation.clients.transactional import VERSION_2, TransactionalConfig, TransactionalProducer
from kbroker.simulation.clients.transactional_offsets import send_offsets
from kbroker.simulation.clients.workloads.quiescence import wait_until_no_open_transaction
from kbroker.simulation.clients.workloads.stale_client import StaleClient
from tests.unit.simulation.clients.program import Program, client_test

transactional_test = client_test(partitions=2)
P, Q = ("t", 0), ("t", 1)
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def caps_of(version: int, program: Program) -> Caps:
    return {} if version == VERSION_2 else draw_older_transactional_versions(program.random("caps"))


def producer(program: Program, version: int, name: str = "p", **values: object) -> TransactionalProducer:
    config = TransactionalConfig(**values)
    cluster = program.cluster(name, caps=caps_of(version, program))
    return TransactionalProducer(cluster, program.history, name, program.random(f"{name}/work"), "id", config)


async def begun(program: Program, version: int, name: str = "p", **values: object) -> TransactionalProducer:
    """Return a producer whose open transaction has written the next two values to P."""
    transactional = producer(program, version, name, **values)
    await transactional.init()
    transactional.begin(0)
    await write(program, transactional)
    return transactional


def write(program: Program, transactional: TransactionalProducer, tp: TopicPartition = P, count: int = 2):
    return transactional.write(tp, program.values.allocate(count))


async def all_read(program: Program, partitions: Iterable[TopicPartition] = (P, Q), *, committed: bool = True) -> list:
    """Return the values of each of these partitions."""
    name = f"reader of step {program.history.step}"
    reader = program.consumer(name, config=ConsumerConfig(committed_only=committed, sessions=False))
    values_read = []
    for tp in partitions:
        reader.assign({tp: 0})
        values: list[int] = []
        while reads := await reader.poll():
            values += [read.value for read in reads]
        values_read.append(values)
    return values_read


async def wait_until_quiescent(program: Program) -> None:
    waiting = wait_until_no_open_transaction(program.cluster("settling"), [P, Q])
    await asyncio.wait_for(waiting, 60)


def outcomes(program: Program) -> list[Outcome]:
    return [
        operation.outcome for operation in program.history.operations if isinstance(operation.action, EndTransaction)
    ]


@VERSIONS
@transactional_test
async def test_end_without_a_response_is_fatal(program: Program, version: int) -> None:
    transactional = await begun(program, version, coordinator_timeout_s=3.0)
    other = producer(program, version, "other")
    program.cut_responses()
    with pytest.raises(FatalError):
        await transactional.commit()
    transactional.close()
    program.heal()
    assert outcomes(program) == [Outcome.UNKNOWN]
    await other.init()
    await wait_until_quiescent(program)
    assert await all_read(program, [P]) in ([[0, 1]], [[]])


@VERSIONS
@transactional_test
async def test_unacknowledged_batch_fails_the_transaction(program: Program, version: int) -> None:
    transactional = await begun(program, version, delivery_timeout_s=2.0)
    program.cut_responses()
    lost = write(program, transactional, P, 1)
    await asyncio.sleep(5)
    program.reset_connections()
    program.heal()
    assert (await lost).outcome is Outcome.UNKNOWN
    with pytest.raises(AbortableError):
        await transactional.commit()
    await transactional.abort()
    transactional.begin(1)
    assert (await write(program, transactional, P, 1)).outcome is Outcome.OK
    await transactional.commit()
    await wait_until_quiescent(program)
    assert await all_read(program, [P]) == [[3]]


@VERSIONS
@transactional_test
async def test_transaction_is_aborted_after_its_timeout(program: Program, version: int) -> None:
    transactional = await begun(program, version, timeout_ms=1_000)
    await asyncio.sleep(30)
    await wait_until_quiescent(program)
    with pytest.raises(FatalError):
        await transactional.commit()
    assert outcomes(program) == [Outcome.FAILED]
    assert await all_read(program, [P]) == [[]]


def consuming_member(program: Program) -> Member:
    return program.member("m", MemberConfig(commits=False), consumer_config=ConsumerConfig(committed_only=True))


async def read_some(reader: Member) -> None:
    while not await reader.poll():
        pass


async def committed_offset(program: Program) -> int:
    cluster = program.cluster(f"reader of offsets at step {program.history.step}")
    await cluster.refresh_metadata(["t"])
    return (await StandaloneGroupOffsets(cluster, program.history, "reader of offsets", "g").committed([P]))[P][0]


@VERSIONS
@transactional_test
async def test_removed_member_cannot_commit_in_a_transaction(program: Program, version: int) -> None:
    await program.send(program.producer("source"), P, 3)
    transactional, reader = producer(program, version), consuming_member(program)
    await transactional.init()
    await read_some(reader)
    membership, positions = reader.membership_and_positions()
    await reader.leave()
    for number, wrong in enumerate((membership, membership._replace(generation=77), Membership(1, "unknown"))):
        transactional.begin(number)
        with pytest.raises(AbortableError):
            await send_offsets(transactional, "g", wrong, positions)
        await transactional.abort()
    assert await committed_offset(program) == -1


@transactional_test
async def test_stale_requests_have_no_effect(program: Program) -> None:
    transactional = producer(program, VERSION_2)
    await transactional.init()
    stale_client = StaleClient(
        program.cluster("stale-client"), program.random("stale-client"), transactional.config.ended_transactions, ["g"]
    )
    sent = []
    for number in range(12):
        transactional.begin(number)
        await asyncio.gather(*(write(program, transactional, tp, 1) for tp in (P, Q)))
        if transactional.config.ended_transactions:
            sent += [
                await stale_client.send_stale_request(ended)
                for ended in transactional.config.ended_transactions[-2:]
                for _ in range(5)
            ]
        await (transactional.commit() if number % 3 else transactional.abort())
    await wait_until_quiescent(program)
    expected = [value for value in range(24) if value // 2 % 3]
    assert await all_read(program) == [expected[::2], expected[1::2]]
    kinds = {text.split(" of ")[0].split(" for ")[0] for text in sent}
    assert kinds >= {"commit", "abort", "a batch", "a marker", "offsets"}


@transactional_test
async def test_transaction_begun_with_the_clock_ahead_times_out(program: Program) -> None:
    """By the wall clock it would stay open for another hour."""
    transactional = producer(program, VERSION_2, timeout_ms=1_000)
    program.machine.clock.skew_ms += 3_600_000
    await transactional.init()
    transactional.begin(0)
    await write(program, transactional, P, 1)
    program.machine.clock.skew_ms -= 3_600_000
    await wait_until_quiescent(program)
    assert await all_read(program) == [[], []]
