"""Transactional producers against the real broker, in both versions of transactions."""

import asyncio
from collections.abc import Iterable

import pytest

from kbroker.simulation.checker.history import Commit, EndTransaction, Outcome
from kbroker.simulation.clients.connections.cluster import TRANSACTION
from kbroker.simulation.clients.connections.coordinator import AbortableError, FatalError
from kbroker.simulation.clients.connections.versions import Caps, draw_older_transactional_versions
from kbroker.simulation.clients.consumer.consumer import ConsumerConfig
from kbroker.simulation.clients.consumer.group_offsets import Membership, StandaloneGroupOffsets
from kbroker.simulation.clients.consumer.member import Member, MemberConfig
from kbroker.simulation.clients.producer.transactional import VERSION_2, TransactionalConfig, TransactionalProducer
from kbroker.simulation.clients.producer.transactional_offsets import send_offsets
from kbroker.simulation.clients.workloads.quiescence import wait_until_no_open_transaction
from kbroker.simulation.clients.workloads.stale_client import StaleClient
from tests.unit.simulation.clients.program import Program
from tests.unit.support.simulated_broker import Machine, story

P, Q = ("t", 0), ("t", 1)
VERSIONS = pytest.mark.parametrize("version", [1, 2])


async def started(machine: Machine) -> Program:
    await (await machine.client()).create_topic("t", 2)
    return Program(machine)


def caps_of(version: int, program: Program) -> Caps:
    return {} if version == VERSION_2 else draw_older_transactional_versions(program.random("caps"))


def producer(program: Program, version: int, name: str = "p", **values: object) -> TransactionalProducer:
    config = TransactionalConfig(**values)  # type: ignore[arg-type]
    cluster = program.cluster(name, caps=caps_of(version, program))
    return TransactionalProducer(cluster, program.history, name, program.random(f"{name}/work"), "id", config)


async def all_read(program: Program, partitions: Iterable[tuple[str, int]] = (P, Q), *, committed: bool = True) -> list:
    """Return the values of each of these partitions."""
    name = f"reader of step {program.history.step}"
    reader = program.consumer(name, config=ConsumerConfig(committed_only=committed, sessions=False))
    found = []
    for tp in partitions:
        reader.assign({tp: 0})
        values: list[int] = []
        while reads := await reader.poll():
            values += [read.value for read in reads]
        found.append(values)
    return found


async def wait_until_quiescent(program: Program) -> None:
    waiting = wait_until_no_open_transaction(program.cluster("settling"), program.history, [P, Q], late=False)
    await asyncio.wait_for(waiting, 60)


def outcomes(program: Program) -> list[Outcome]:
    return [
        operation.outcome for operation in program.history.operations if isinstance(operation.action, EndTransaction)
    ]


@VERSIONS
@story
async def test_only_committed_records_are_read(machine: Machine, version: int) -> None:
    program = await started(machine)
    transactional = producer(program, version)
    await transactional.init()
    assert transactional.version == version
    for number, commit in enumerate((True, False, True)):
        transactional.begin(number)
        await asyncio.gather(*(transactional.write(tp, program.values.allocate(2)) for tp in (P, Q)))
        assert await all_read(program, [P]) == [[] if number == 0 else [0, 1]]
        await (transactional.commit() if commit else transactional.abort())
        await wait_until_quiescent(program)
    assert await all_read(program) == [[0, 1, 8, 9], [2, 3, 10, 11]]
    assert await all_read(program, committed=False) == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert outcomes(program) == [Outcome.OK] * 3
    program.close()


@story
async def test_each_version_2_transaction_bumps_the_epoch(machine: Machine) -> None:
    program = await started(machine)
    for version, epochs in ((2, [0, 1, 2, 3]), (1, [4, 4, 4, 4])):
        transactional = producer(program, version, f"p{version}")
        await transactional.init()
        seen = [transactional.identity[1]]
        for number in range(3):
            transactional.begin(number + 10 * version)
            await transactional.write(P, program.values.allocate(1))
            await transactional.commit()
            seen.append(transactional.identity[1])
        assert seen == epochs
    program.close()


@VERSIONS
@story
async def test_init_aborts_the_open_transaction_and_fences(machine: Machine, version: int) -> None:
    program = await started(machine)
    old, new = producer(program, version, "old"), producer(program, version, "new")
    await old.init()
    old.begin(0)
    await old.write(P, program.values.allocate(2))
    await new.init()
    new.begin(1)
    await new.write(P, program.values.allocate(2))
    late = await old.write(Q, program.values.allocate(2))
    assert late.outcome is Outcome.FAILED
    # In version 1 the fenced producer gets the error earlier, from AddPartitionsToTxn.
    with pytest.raises(AbortableError if version == VERSION_2 else FatalError):
        await old.commit()
    with pytest.raises(FatalError):
        await old.abort()
    await new.commit()
    await wait_until_quiescent(program)
    assert await all_read(program) == [[2, 3], []]
    program.close()


@VERSIONS
@story
async def test_lost_commit_response_is_retried(machine: Machine, version: int) -> None:
    program = await started(machine)
    transactional = producer(program, version)
    await transactional.init()
    transactional.begin(0)
    await transactional.write(P, program.values.allocate(2))
    program.cut_responses()
    committing = asyncio.create_task(transactional.commit())
    await asyncio.sleep(1)
    program.reset_connections()
    program.heal()
    await committing
    assert outcomes(program) == [Outcome.OK]
    transactional.begin(1)
    await transactional.write(P, program.values.allocate(2))
    await transactional.commit()
    await wait_until_quiescent(program)
    assert await all_read(program, [P]) == [[0, 1, 2, 3]]
    program.close()


@VERSIONS
@story
async def test_end_without_a_response_is_fatal(machine: Machine, version: int) -> None:
    program = await started(machine)
    transactional, other = producer(program, version, coordinator_timeout_s=3.0), producer(program, version, "other")
    await transactional.init()
    transactional.begin(0)
    await transactional.write(P, program.values.allocate(2))
    program.cut_responses()
    with pytest.raises(FatalError):
        await transactional.commit()
    transactional.close()
    program.heal()
    assert outcomes(program) == [Outcome.UNKNOWN]
    await other.init()
    await wait_until_quiescent(program)
    assert await all_read(program, [P]) in ([[0, 1]], [[]])
    program.close()


@VERSIONS
@story
async def test_unacknowledged_batch_fails_the_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    transactional = producer(program, version, delivery_timeout_s=2.0)
    await transactional.init()
    transactional.begin(0)
    await transactional.write(P, program.values.allocate(1))
    program.cut_responses()
    lost = transactional.write(P, program.values.allocate(1))
    await asyncio.sleep(5)
    program.reset_connections()
    program.heal()
    assert (await lost).outcome is Outcome.UNKNOWN
    with pytest.raises(AbortableError):
        await transactional.commit()
    await transactional.abort()
    transactional.begin(1)
    assert (await transactional.write(P, program.values.allocate(1))).outcome is Outcome.OK
    await transactional.commit()
    await wait_until_quiescent(program)
    assert await all_read(program, [P]) == [[2]]
    program.close()


@VERSIONS
@story
async def test_transaction_is_aborted_after_its_timeout(machine: Machine, version: int) -> None:
    program = await started(machine)
    transactional = producer(program, version, timeout_ms=1_000)
    await transactional.init()
    transactional.begin(0)
    await transactional.write(P, program.values.allocate(1))
    await asyncio.sleep(30)
    await wait_until_quiescent(program)
    with pytest.raises(FatalError):
        await transactional.commit()
    assert outcomes(program) == [Outcome.FAILED]
    assert await all_read(program, [P]) == [[]]
    program.close()


@VERSIONS
@story
async def test_broker_crash_in_the_middle_of_a_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    transactional = producer(program, version)
    await transactional.init()
    transactional.begin(0)
    await transactional.write(P, program.values.allocate(2))
    await machine.crash()
    await machine.start()
    assert await all_read(program) == [[], []]
    await transactional.write(Q, program.values.allocate(2))
    await transactional.commit()
    await wait_until_quiescent(program)
    assert await all_read(program) == [[0, 1], [2, 3]]
    program.close()


def member(program: Program, name: str = "m") -> Member:
    consumer = program.consumer(name, config=ConsumerConfig(committed_only=True))
    config = MemberConfig(commits=False)
    return Member(consumer, program.history, name, "g", ["t"], program.random(f"{name}/group"), config)


async def read_some(reader: Member) -> None:
    while not await reader.poll():
        pass


@VERSIONS
@story
async def test_offsets_are_committed_with_the_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    source = program.producer("source")
    await program.send(source, P, 3)
    transactional, reader = producer(program, version), member(program)
    await transactional.init()
    for number, commit in enumerate((False, True)):
        await read_some(reader)
        transactional.begin(number)
        membership, positions = reader.membership_and_positions()
        assert positions[P][0] == 3
        await transactional.write(Q, program.values.allocate(1))
        await send_offsets(transactional, "g", membership, positions)
        await (transactional.commit() if commit else transactional.abort())
        await wait_until_quiescent(program)
        assert await committed_offset(program) == (3 if commit else -1)
        await reader.reset_to_committed()
    assert [commit.offsets[P] for commit in program.actions(Commit)] == [3, 3]
    await reader.leave()
    program.close()


async def committed_offset(program: Program) -> int:
    cluster = program.cluster(f"looker of step {program.history.step}")
    await cluster.refresh_metadata(["t"])
    return (await StandaloneGroupOffsets(cluster, program.history, "looker", "g").committed([P]))[P][0]


@VERSIONS
@story
async def test_removed_member_cannot_commit_in_a_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    await program.send(program.producer("source"), P, 3)
    transactional, reader = producer(program, version), member(program)
    await transactional.init()
    await read_some(reader)
    membership, positions = reader.membership_and_positions()
    await reader.leave()
    for number, wrong in enumerate((membership, membership._replace(generation=77), Membership(1, "nobody"))):
        transactional.begin(number)
        with pytest.raises(AbortableError):
            await send_offsets(transactional, "g", wrong, positions)
        await transactional.abort()
    assert await committed_offset(program) == -1
    program.close()


@story
async def test_stale_requests_have_no_effect(machine: Machine) -> None:
    program = await started(machine)
    transactional = producer(program, VERSION_2)
    await transactional.init()
    stale_client = StaleClient(
        program.cluster("stale-client"), program.random("stale-client"), transactional.config.ended_transactions, ["g"]
    )
    said = []
    for number in range(12):
        transactional.begin(number)
        await asyncio.gather(*(transactional.write(tp, program.values.allocate(1)) for tp in (P, Q)))
        if transactional.config.ended_transactions:
            said += [
                await stale_client.send_stale_request(ended)
                for ended in transactional.config.ended_transactions[-2:]
                for _ in range(5)
            ]
        await (transactional.commit() if number % 3 else transactional.abort())
    await wait_until_quiescent(program)
    expected = [value for value in range(24) if value // 2 % 3]
    assert await all_read(program) == [expected[::2], expected[1::2]]
    assert {text.split(" of ")[0].split(" for ")[0] for text in said} >= {
        "commit",
        "abort",
        "a batch",
        "a marker",
        "offsets",
    }
    program.close()


@story
async def test_transaction_begun_with_the_clock_ahead_is_fenced(machine: Machine) -> None:
    """Without fencing it would stay open for another hour."""
    program = await started(machine)
    transactional = producer(program, VERSION_2, timeout_ms=1_000)
    machine.clock.skew_ms += 3_600_000
    await transactional.init()
    transactional.begin(0)
    await transactional.write(P, program.values.allocate(1))
    machine.clock.skew_ms -= 3_600_000
    with pytest.raises(TimeoutError):
        await wait_until_quiescent(program)
    waiting = wait_until_no_open_transaction(program.cluster("late"), program.history, [P, Q], late=True)
    await asyncio.wait_for(waiting, 60)
    assert await all_read(program) == [[], []]
    program.close()


@story
async def test_coordinator_is_found_by_key_type(machine: Machine) -> None:
    program = await started(machine)
    for version in (1, 2):
        cluster = program.cluster(f"c{version}", caps=caps_of(version, program))
        assert not (await cluster.coordinator("id", TRANSACTION)).lost
    program.close()
