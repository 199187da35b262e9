"""Workloads on a broker with network faults and crashes."""

from random import Random
from typing import Any

from kbroker.simulation.checker.history import Assign, Corrupt, Poll
from kbroker.simulation.clients.workloads.consumers import consume_assigned, final_reads
from kbroker.simulation.clients.workloads.context import WorkloadContext
from tests.unit.simulation.clients.program import BOOTSTRAP, LOG, PLACE, Program, client_test, read_until


def context_of(program: Program, **options: Any) -> WorkloadContext:
    return WorkloadContext(program.machine.loop, program.history, BOOTSTRAP, **options)


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
