"""The admin client against the real broker."""

import asyncio

import pytest

from kbroker.simulation.checker.history import DeleteRecords, Outcome
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.connections.versions import draw_older_versions
from kbroker.simulation.clients.group_offsets import EARLIEST, LATEST, RefusedError, list_offset
from tests.sampling import third_of
from tests.unit.simulation.clients.program import PLACE, Program, client_test


@pytest.mark.parametrize("seed", third_of(range(4)))
@client_test(partitions=0)
async def test_topics_are_created_and_deleted(program: Program, seed: int) -> None:
    admin = program.admin(caps=draw_older_versions(program.random("caps")) if seed else {})
    assert await admin.describe("t") is None
    await admin.create_topic("t", 2, {"cleanup.policy": "compact"})
    with pytest.raises(RefusedError, match="TOPIC_ALREADY_EXISTS"):
        await admin.create_topic("t", 2)
    described = await admin.describe("t")
    assert described is not None
    assert described.partitions == 2
    await admin.create_partitions("t", 5)
    described = await admin.describe("t")
    assert described is not None
    assert described.partitions == 5
    await admin.elect_preferred_leaders()
    await admin.alter_configs("t", {"cleanup.policy": None, "retention.ms": "1000"})
    assert program.machine.partition("t").log.config.has_delete_policy
    with pytest.raises(RefusedError, match="INVALID_CONFIG"):
        await admin.alter_configs("t", {"no.such.config": "1"})
    await admin.delete_topic("t")
    with pytest.raises(RefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await admin.delete_topic("t")


@client_test(partitions=0)
async def test_operation_with_lost_response_counts_as_done_when_repeated(program: Program) -> None:
    admin = program.admin(timeout_s=1)
    await admin.create_topic("first")
    program.cut_responses()
    making = program.machine.loop.create_task(admin.create_topic("t"))
    await program.machine.until(lambda: program.machine.broker.services.replicas.get("t", 0) is not None)
    await asyncio.sleep(2)
    program.heal()
    await making


@client_test(partitions=0)
async def test_retries_end_at_the_timeout(program: Program) -> None:
    admin = Admin(program.cluster("admin", timeout_s=1), program.history, "admin", timeout_s=5)
    program.cut_requests()
    with pytest.raises(TimeoutError):
        await admin.create_topic("t")
    program.heal()


@client_test(partitions=0)
async def test_records_are_deleted(program: Program) -> None:
    admin = program.admin(timeout_s=1)
    await admin.create_topic("t")
    producer = program.producer()
    await program.send(producer, PLACE, 10)
    assert await admin.delete_records(PLACE, 4) == 4
    assert (await list_offset(admin.cluster, PLACE, EARLIEST))[0] == 4
    assert (await list_offset(admin.cluster, PLACE, LATEST))[0] == 10
    assert program.actions(DeleteRecords) == [DeleteRecords(PLACE, 4)]
    await admin.delete_records(PLACE, 99)
    assert program.actions(DeleteRecords, Outcome.FAILED) == [DeleteRecords(PLACE, 99)]
    program.cut_responses()
    assert await admin.delete_records(PLACE, 6) == -1
    assert program.actions(DeleteRecords, Outcome.UNKNOWN) == [DeleteRecords(PLACE, 6)]
    program.heal()
