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


async def all_read(program: Program, places: Iterable[tuple[str, int]] = (P, Q), *, committed: bool = True) -> list:
    """The values in each of these partitions up to where nothing comes any more."""
    name = f"reader of step {program.history.step}"
    reader = program.consumer(name, config=ConsumerConfig(committed_only=committed, sessions=False))
    found = []
    for place in places:
        reader.assign({place: 0})
        values: list[int] = []
        while reads := await reader.poll():
            values += [read.value for read in reads]
        found.append(values)
    return found


async def settled(program: Program) -> None:
    settling = wait_until_no_open_transaction(program.cluster("settling"), program.history, [P, Q], late=False)
    await asyncio.wait_for(settling, 60)


def outcomes(program: Program) -> list[Outcome]:
    return [one.outcome for one in program.history.operations if isinstance(one.action, EndTransaction)]


@VERSIONS
@story
async def test_what_is_committed_is_read_and_what_is_aborted_is_not(machine: Machine, version: int) -> None:
    program = await started(machine)
    one = producer(program, version)
    await one.init()
    assert one.version == version
    for number, commit in enumerate((True, False, True)):
        one.begin(number)
        await asyncio.gather(*(one.write(place, program.values.allocate(2)) for place in (P, Q)))
        assert await all_read(program, [P]) == [[] if number == 0 else [0, 1]]
        await (one.commit() if commit else one.abort())
        await settled(program)
    assert await all_read(program) == [[0, 1, 8, 9], [2, 3, 10, 11]]
    assert await all_read(program, committed=False) == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    assert outcomes(program) == [Outcome.OK] * 3
    program.close()


@story
async def test_each_transaction_of_version_2_has_an_epoch_of_its_own(machine: Machine) -> None:
    program = await started(machine)
    for version, epochs in ((2, [0, 1, 2, 3]), (1, [4, 4, 4, 4])):
        one = producer(program, version, f"p{version}")
        await one.init()
        seen = [one.identity[1]]
        for number in range(3):
            one.begin(number + 10 * version)
            await one.write(P, program.values.allocate(1))
            await one.commit()
            seen.append(one.identity[1])
        assert seen == epochs
    program.close()


@VERSIONS
@story
async def test_who_takes_over_aborts_what_was_open_and_fences(machine: Machine, version: int) -> None:
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
    # With version 1 it learns at once, for it asks before it writes.
    with pytest.raises(AbortableError if version == VERSION_2 else FatalError):
        await old.commit()
    with pytest.raises(FatalError):
        await old.abort()
    await new.commit()
    await settled(program)
    assert await all_read(program) == [[2, 3], []]
    program.close()


@VERSIONS
@story
async def test_the_answer_to_a_commit_gets_lost(machine: Machine, version: int) -> None:
    program = await started(machine)
    one = producer(program, version)
    await one.init()
    one.begin(0)
    await one.write(P, program.values.allocate(2))
    program.cut_answers()
    committing = asyncio.create_task(one.commit())
    await asyncio.sleep(1)
    program.reset_connections()
    program.heal()
    await committing
    assert outcomes(program) == [Outcome.OK]
    one.begin(1)
    await one.write(P, program.values.allocate(2))
    await one.commit()
    await settled(program)
    assert await all_read(program, [P]) == [[0, 1, 2, 3]]
    program.close()


@VERSIONS
@story
async def test_an_end_that_is_never_answered_is_the_producers_end(machine: Machine, version: int) -> None:
    program = await started(machine)
    one, other = producer(program, version, coordinator_timeout_s=3.0), producer(program, version, "other")
    await one.init()
    one.begin(0)
    await one.write(P, program.values.allocate(2))
    program.cut_answers()
    with pytest.raises(FatalError):
        await one.commit()
    one.close()
    program.heal()
    assert outcomes(program) == [Outcome.UNKNOWN]
    await other.init()
    await settled(program)
    assert await all_read(program, [P]) in ([[0, 1]], [[]])
    program.close()


@VERSIONS
@story
async def test_a_batch_that_is_not_acknowledged_in_time_fails_the_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    one = producer(program, version, delivery_timeout_s=2.0)
    await one.init()
    one.begin(0)
    await one.write(P, program.values.allocate(1))
    program.cut_answers()
    lost = one.write(P, program.values.allocate(1))
    await asyncio.sleep(5)
    program.reset_connections()
    program.heal()
    assert (await lost).outcome is Outcome.UNKNOWN
    with pytest.raises(AbortableError):
        await one.commit()
    await one.abort()
    one.begin(1)
    assert (await one.write(P, program.values.allocate(1))).outcome is Outcome.OK
    await one.commit()
    await settled(program)
    assert await all_read(program, [P]) == [[2]]
    program.close()


@VERSIONS
@story
async def test_a_transaction_is_aborted_when_its_time_is_over(machine: Machine, version: int) -> None:
    program = await started(machine)
    one = producer(program, version, timeout_ms=1_000)
    await one.init()
    one.begin(0)
    await one.write(P, program.values.allocate(1))
    await asyncio.sleep(30)
    await settled(program)
    with pytest.raises(FatalError):
        await one.commit()
    assert outcomes(program) == [Outcome.FAILED]
    assert await all_read(program, [P]) == [[]]
    program.close()


@VERSIONS
@story
async def test_a_kill_in_the_middle_of_a_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    one = producer(program, version)
    await one.init()
    one.begin(0)
    await one.write(P, program.values.allocate(2))
    await machine.crash()
    await machine.start()
    assert await all_read(program) == [[], []]
    await one.write(Q, program.values.allocate(2))
    await one.commit()
    await settled(program)
    assert await all_read(program) == [[0, 1], [2, 3]]
    program.close()


def member(program: Program, name: str = "m") -> Member:
    consumer = program.consumer(name, config=ConsumerConfig(committed_only=True))
    config = MemberConfig(commits=False)
    return Member(consumer, program.history, name, "g", ["t"], program.random(f"{name}/group"), config)


async def read_some(one: Member) -> None:
    while not await one.poll():
        pass


@VERSIONS
@story
async def test_offsets_are_committed_with_the_transaction(machine: Machine, version: int) -> None:
    program = await started(machine)
    source = program.producer("source")
    await program.send(source, P, 3)
    one, reader = producer(program, version), member(program)
    await one.init()
    for number, commit in enumerate((False, True)):
        await read_some(reader)
        one.begin(number)
        membership, positions = reader.membership_and_positions()
        assert positions[P][0] == 3
        await one.write(Q, program.values.allocate(1))
        await send_offsets(one, "g", membership, positions)
        await (one.commit() if commit else one.abort())
        await settled(program)
        assert await kept(program) == (3 if commit else -1)
        await reader.reset_to_committed()
    assert [commit.offsets[P] for commit in program.actions(Commit)] == [3, 3]
    await reader.leave()
    program.close()


async def kept(program: Program) -> int:
    cluster = program.cluster(f"looker of step {program.history.step}")
    await cluster.refresh_metadata(["t"])
    return (await StandaloneGroupOffsets(cluster, program.history, "looker", "g").committed([P]))[P][0]


@VERSIONS
@story
async def test_a_member_that_is_out_of_its_group_commits_nothing(machine: Machine, version: int) -> None:
    program = await started(machine)
    await program.send(program.producer("source"), P, 3)
    one, reader = producer(program, version), member(program)
    await one.init()
    await read_some(reader)
    membership, positions = reader.membership_and_positions()
    await reader.leave()
    for number, wrong in enumerate((membership, membership._replace(generation=77), Membership(1, "nobody"))):
        one.begin(number)
        with pytest.raises(AbortableError):
            await send_offsets(one, "g", wrong, positions)
        await one.abort()
    assert await kept(program) == -1
    program.close()


@story
async def test_nothing_that_is_sent_again_has_an_effect(machine: Machine) -> None:
    program = await started(machine)
    one = producer(program, VERSION_2)
    await one.init()
    stale_client = StaleClient(
        program.cluster("saboteur"), program.random("saboteur"), one.config.ended_transactions, ["g"]
    )
    said = []
    for number in range(12):
        one.begin(number)
        await asyncio.gather(*(one.write(place, program.values.allocate(1)) for place in (P, Q)))
        if one.config.ended_transactions:
            said += [
                await stale_client.send_stale_request(ended)
                for ended in one.config.ended_transactions[-2:]
                for _ in range(5)
            ]
        await (one.commit() if number % 3 else one.abort())
    await settled(program)
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
async def test_a_transaction_of_a_wrong_clock_is_taken_over(machine: Machine) -> None:
    """It would be open for another hour."""
    program = await started(machine)
    one = producer(program, VERSION_2, timeout_ms=1_000)
    machine.clock.skew_ms += 3_600_000
    await one.init()
    one.begin(0)
    await one.write(P, program.values.allocate(1))
    machine.clock.skew_ms -= 3_600_000
    with pytest.raises(TimeoutError):
        await settled(program)
    settling = wait_until_no_open_transaction(program.cluster("late"), program.history, [P, Q], late=True)
    await asyncio.wait_for(settling, 60)
    assert await all_read(program) == [[], []]
    program.close()


@story
async def test_a_coordinator_is_found_by_its_kind(machine: Machine) -> None:
    program = await started(machine)
    for version in (1, 2):
        cluster = program.cluster(f"c{version}", caps=caps_of(version, program))
        assert not (await cluster.coordinator("id", TRANSACTION)).lost
    program.close()
