"""Workloads on a broker with network faults and crashes."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kbroker.simulation.checker.history import Assign, Commit, Corrupt, Join, Note, OffsetFetch, Outcome, Poll, Send
from kbroker.simulation.clients.workloads.consumers import consume_assigned, consume_group, final_reads
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.producers import produce
from tests.sampling import third_of
from tests.unit.simulation.clients.program import BOOTSTRAP, LOG, PLACE, Program, client_test, read_until

PLACES = [("t", index) for index in range(4)]
ENDLESS = 1 << 60

workload_test = client_test(partitions=len(PLACES), auto_create_topics_enable=False)

Fault = Callable[[Program, Random], Awaitable[None]]


async def reset(program: Program, random: Random) -> None:
    program.reset_connections()


async def cut(program: Program, random: Random) -> None:
    random.choice((program.cut_responses, program.cut_requests))()
    await asyncio.sleep(random.random() * 4)
    program.heal()


async def crash(program: Program, random: Random) -> None:
    await program.machine.crash()
    await asyncio.sleep(random.random() * 2)
    await program.machine.start()


async def run_workloads(program: Program, faults: list[Fault]) -> None:
    """Run all workloads concurrently until the writers have finished, then the final reads."""
    context, create = context_of(program), program.machine.loop.create_task
    writers = [
        create(
            produce(context, name, program.random(name), program.values, PLACES, 50, idempotent=acks == -1, acks=acks)
        )
        for name, acks in (("p0", -1), ("p1", -1), ("p2", 1), ("p3", 0))
    ]
    readers = [
        create(consume_assigned(context, f"c{n}", program.random(f"c{n}"), PLACES, ENDLESS, group=group))
        for n, group in enumerate((None, "alone"))
    ]
    readers += [
        create(consume_group(context, f"m{n}", program.random(f"m{n}"), "g", ["t"], ENDLESS, static=n / 2))
        for n in range(3)
    ]
    random = program.random("faults")
    while not all(writer.done() for writer in writers):
        await asyncio.sleep(random.random())
        if faults:
            await random.choice(faults)(program, random)
    # Members that join one after another may wait for the rebalance timeout of those that have left.
    await asyncio.sleep(20)
    context.stop.request()
    await asyncio.gather(*writers, *readers)
    program.history.begin_final_reads()
    assert await final_reads(context, program.random("final"), PLACES) == []


def context_of(program: Program, **options: Any) -> WorkloadContext:
    return WorkloadContext(program.machine.loop, program.history, BOOTSTRAP, **options)


@workload_test
async def test_workloads_without_faults(program: Program) -> None:
    await run_workloads(program, [])
    operations = program.history.operations
    assert len(program.actions(Send)) + len(program.actions(Send, Outcome.UNKNOWN)) == 200
    reasons = {operation.detail for operation in operations if operation.outcome is Outcome.UNKNOWN}
    # The partition of a new internal topic is loading for a moment, also for those that have not created the topic.
    loading = "COORDINATOR_LOAD_IN_PROGRESS"
    assert reasons <= {"no acknowledgement was asked for", "the producer was closed", "REBALANCE_IN_PROGRESS", loading}
    final_polls = [operation.action for operation in operations if operation.process.startswith("final-")]
    final = {read.value for poll in final_polls if isinstance(poll, Poll) for read in poll.reads}
    assert final >= {value for send in program.actions(Send) for value in send.values}
    assert any(join.instance for join in program.actions(Join))
    assert len([commit for commit in program.actions(Commit) if commit.group == "g"]) > 10
    assert len([commit for commit in program.actions(Commit) if commit.member == ""]) > 3


@pytest.mark.parametrize("seed", third_of(range(3)))
@workload_test
async def test_workloads_with_faults(program: Program, seed: int) -> None:
    await run_workloads(program, [reset, cut, crash])
    assert len(program.actions(Send)) > 90
    assert any(operation.detail for operation in program.history.operations if not isinstance(operation.action, Note))


@client_test(is_checked=False)
async def test_corrupt_batch_is_recorded_and_skipped(program: Program) -> None:
    producer = program.producer()
    await program.send(producer, PLACE, 3)
    size = program.log_size()
    await program.send(producer, PLACE, 4)
    await program.send(producer, PLACE, 5)
    program.machine.disk.data(LOG)[size + 70] ^= 1
    await consume_assigned(context_of(program), "c", Random(4), [PLACE], 60, restarts=0, seeks=0)
    assert [(corrupt.tp, corrupt.offset) for corrupt in program.actions(Corrupt)] == [(PLACE, 3)]
    assert [action.positions for action in program.actions(Assign) if action.reason == "seek"] == [{PLACE: 7}]
    values = [read.value for poll in program.actions(Poll) for read in poll.reads]
    assert values == [0, 1, 2, 7, 8, 9, 10, 11]


@client_test
async def test_standalone_consumer_starts_at_its_committed_offsets(program: Program) -> None:
    await program.send(program.producer(), PLACE, 9)
    context = context_of(program, old_versions=0)
    for _ in range(2):
        await consume_assigned(context, "c", Random(5), [PLACE], 40, restarts=0, seeks=0, group="alone", commits=1)
    assert [fetch.offsets for fetch in program.actions(OffsetFetch)] == [{PLACE: -1}, {PLACE: 9}]
    assert [action.positions for action in program.actions(Assign)] == [{PLACE: 0}, {PLACE: 9}]


@client_test(partitions=2)
async def test_final_reads_return_unfinished_partitions(program: Program) -> None:
    consumer = program.consumer()
    consumer.assign({("t", 0): 0})
    await program.send(program.producer(), ("t", 0))
    await read_until(consumer, 1)
    context = context_of(program)
    program.history.begin_final_reads()
    assert await final_reads(context, Random(1), [("t", 0), ("t", 7)], deadline_s=10) == [("t", 7)]
    await program.machine.stop()
    assert await final_reads(context, Random(1), [("t", 0)], deadline_s=10) == [("t", 0)]
    assert await final_reads(context, Random(1), []) == []
