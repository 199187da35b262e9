"""Whole programs, on a broker whose connections are reset and that dies now and then."""

import asyncio
from random import Random

import pytest

from kbroker.simulation.clients.bootstrap import Cluster
from kbroker.simulation.clients.workload import (
    Setting,
    consume_assigned,
    consume_group,
    final_reads,
    produce,
)
from kbroker.simulation.history import Join, Outcome, Poll, Send
from tests.unit.harness import HOST, PORT, Machine, story
from tests.unit.simulation.clients.program import Program

PLACES = [("t", index) for index in range(4)]


def run(seed: int, faults: bool) -> None:
    @story(seed=seed, auto_create_topics_enable=False)
    async def programs(machine: Machine) -> None:
        program = Program(machine)
        setting = Setting(machine.loop, program.history, [(HOST, PORT)])
        client = await machine.client()
        await client.create_topic("t", 4)
        create = machine.loop.create_task
        writers = [
            create(produce(setting, f"p{n}", program.random(f"p{n}"), program.values, PLACES, 60, idempotent=n < 3))
            for n in range(4)
        ]
        readers = [create(consume_assigned(setting, f"c{n}", program.random(f"c{n}"), PLACES, 10**6)) for n in range(2)]
        readers += [
            create(consume_group(setting, f"m{n}", program.random(f"m{n}"), "g", ["t"], 10**6)) for n in range(3)
        ]
        random = program.random("faults")
        while not all(writer.done() for writer in writers):
            await asyncio.sleep(random.random())
            if faults:
                chance = random.random()
                if chance < 0.2:
                    program.reset_connections()
                elif chance < 0.25:
                    await machine.crash()
                    await machine.start()
        await asyncio.sleep(30)
        setting.stop.ask()
        await asyncio.gather(*writers, *readers)
        program.history.begin_final_reads()
        assert await final_reads(setting, program.random("final"), PLACES) == []
        judge(program)
        program.close()

    programs()


def judge(program: Program) -> None:
    operations = program.history.operations
    final = [
        read
        for operation in operations
        if operation.process.startswith("final-") and isinstance(operation.action, Poll)
        for read in operation.action.reads
    ]
    stored = {(read.place, read.value) for read in final}
    once = {read.value for read in final if [other.value for other in final].count(read.value) == 1}
    sends = [operation for operation in operations if isinstance(operation.action, Send)]
    for operation in sends:
        send = operation.action
        assert isinstance(send, Send)
        for value in send.values:
            if operation.outcome is Outcome.OK:
                assert (send.place, value) in stored, value
            elif operation.outcome is Outcome.FAILED:
                assert (send.place, value) not in stored, value
            assert not send.idempotent or value in once or (send.place, value) not in stored
    assert sum(operation.outcome is Outcome.OK for operation in sends) > len(sends) * 0.7
    assert any(isinstance(one.action, Join) and one.outcome is Outcome.OK for one in operations)


@pytest.mark.parametrize("seed", range(3))
def test_programs_on_a_quiet_broker(seed: int) -> None:
    run(seed, faults=False)


@pytest.mark.parametrize("seed", range(3))
def test_programs_on_a_broker_with_faults(seed: int) -> None:
    run(seed, faults=True)


def test_a_cluster_without_addresses_is_absent() -> None:
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(ConnectionError, match="no address"):
            loop.run_until_complete(Cluster(loop, [], Random(1), "nobody").any())
    finally:
        loop.close()
