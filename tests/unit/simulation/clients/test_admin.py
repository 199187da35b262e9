"""The admin client against the real broker."""

import asyncio

import pytest

from kbroker.simulation.checker.history import DeleteRecords, Outcome
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.connections.versions import draw_older_versions
from kbroker.simulation.clients.consumer.offset_lookup import EARLIEST, LATEST, RefusedError, list_offset
from tests.unit.simulation.clients.program import PLACE, Program
from tests.unit.support.simulated_broker import Machine, story


@pytest.mark.parametrize("seed", range(4))
def test_topics_are_created_and_deleted(seed: int) -> None:
    @story(seed=seed)
    async def run(machine: Machine) -> None:
        program = Program(machine)
        one = program.admin(caps=draw_older_versions(program.random("caps")) if seed else {})
        assert await one.describe("t") is None
        await one.create_topic("t", 2, {"cleanup.policy": "compact"})
        with pytest.raises(RefusedError, match="TOPIC_ALREADY_EXISTS"):
            await one.create_topic("t", 2)
        described = await one.describe("t")
        assert described is not None
        assert described.partitions == 2
        await one.create_partitions("t", 5)
        described = await one.describe("t")
        assert described is not None
        assert described.partitions == 5
        await one.alter_configs("t", {"cleanup.policy": None, "retention.ms": "1000"})
        assert machine.partition("t").log.config.has_delete_policy
        with pytest.raises(RefusedError, match="INVALID_CONFIG"):
            await one.alter_configs("t", {"no.such.config": "1"})
        await one.delete_topic("t")
        with pytest.raises(RefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await one.delete_topic("t")
        program.close()

    run()


@story
async def test_operation_with_lost_response_counts_as_done_when_repeated(machine: Machine) -> None:
    program = Program(machine)
    one = program.admin(timeout_s=1)
    await one.create_topic("first")
    program.cut_responses()
    making = machine.loop.create_task(one.create_topic("t"))
    await machine.until(lambda: machine.broker.services.replicas.get("t", 0) is not None)
    await asyncio.sleep(2)
    program.heal()
    await making
    program.close()


@story
async def test_retries_end_at_the_timeout(machine: Machine) -> None:
    program = Program(machine)
    one = Admin(program.cluster("admin", timeout_s=1), program.history, "admin", timeout_s=5)
    program.cut_requests()
    with pytest.raises(TimeoutError):
        await one.create_topic("t")
    program.heal()
    program.close()


@story
async def test_records_are_deleted(machine: Machine) -> None:
    program = Program(machine)
    one = program.admin(timeout_s=1)
    await one.create_topic("t")
    producer = program.producer()
    await program.send(producer, PLACE, 10)
    assert await one.delete_records(PLACE, 4) == 4
    assert (await list_offset(one.cluster, PLACE, EARLIEST))[0] == 4
    assert (await list_offset(one.cluster, PLACE, LATEST))[0] == 10
    assert program.actions(DeleteRecords) == [DeleteRecords(PLACE, 4)]
    await one.delete_records(PLACE, 99)
    assert program.actions(DeleteRecords, Outcome.FAILED) == [DeleteRecords(PLACE, 99)]
    program.cut_responses()
    assert await one.delete_records(PLACE, 6) == -1
    assert program.actions(DeleteRecords, Outcome.UNKNOWN) == [DeleteRecords(PLACE, 6)]
    program.heal()
    program.close()
