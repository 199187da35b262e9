"""Many partitions are added, and get changed configs, in turns: other requests are served in between."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.replica.partition import Partition
from kbroker.runtime.turns import TURN_ELEMENTS
from tests.unit.support.client import batch
from tests.unit.support.simulated_broker import Machine, broker_test

MANY = 3 * TURN_ELEMENTS


def partitions(m: Machine) -> list[Partition]:
    return [partition for tp, partition in m.broker.services.replicas.partitions.items() if tp.topic == "t"]


def counts_between_turns(m: Machine, patch: pytest.MonkeyPatch, wanted: Callable[[Partition], bool]) -> list[int]:
    """Return a list that gets the number of partitions that are as `wanted` whenever others are served."""
    counts: list[int] = []
    turns = m.broker.environment.turns
    next_turn = turns._next_turn

    async def counted() -> None:
        counts.append(sum(map(wanted, partitions(m))))
        await next_turn()

    patch.setattr(turns, "_next_turn", counted)
    return counts


@broker_test
async def test_partitions_of_a_new_topic(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counts_between_turns(m, monkeypatch, lambda partition: partition.is_leader)
    await (await m.client()).create_topic("t", MANY)
    assert any(0 < count < MANY for count in counts)
    assert sum(partition.is_leader for partition in partitions(m)) == MANY


@broker_test
@pytest.mark.parametrize("of_topic", [True, False])
async def test_changed_configs(m: Machine, monkeypatch: pytest.MonkeyPatch, of_topic: bool) -> None:
    """The response is sent when all partitions have them."""
    client = await m.client()
    await client.create_topic("t", MANY)
    counts = counts_between_turns(m, monkeypatch, lambda partition: partition.log.config.retention_ms == 12_345)
    await (client.alter_topic("t", retention_ms=12_345) if of_topic else client.alter_broker(log_retention_ms=12_345))
    assert any(0 < count < MANY for count in counts)
    assert {partition.log.config.retention_ms for partition in partitions(m)} == {12_345}


@broker_test
@pytest.mark.parametrize("of_topic", [True, False])
async def test_min_insync_replicas_is_applied_at_once(
    m: Machine, monkeypatch: pytest.MonkeyPatch, of_topic: bool
) -> None:
    """An ISR that the controller sends in the same change means the same to the leader as to the controller."""
    client = await m.client()
    await client.create_topic("t", MANY)
    counts = counts_between_turns(m, monkeypatch, lambda partition: partition.state.min_insync_replicas == 2)
    await (client.alter_topic("t", min_insync_replicas=2) if of_topic else client.alter_broker(min_insync_replicas=2))
    assert set(counts) == {MANY}
    assert {partition.log.config.min_insync_replicas for partition in partitions(m)} == {2}


@broker_test
async def test_a_default_that_few_partitions_had_is_applied_to_many_at_once_too(
    m: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await m.client()
    await client.create_topic("few", 1)
    await client.alter_broker(min_insync_replicas=2)
    await client.create_topic("t", MANY)
    counts = counts_between_turns(m, monkeypatch, lambda partition: partition.state.min_insync_replicas == 1)
    await client.alter_broker(min_insync_replicas=1)
    assert set(counts) == {MANY}


@broker_test
async def test_a_changed_topic_does_not_look_at_the_partitions_of_others(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("other", 1)
    await client.create_topic("t", 2)
    looked_at: list[str] = []

    class Recording(dict[TopicPartition, Partition]):
        def items(self) -> Any:
            looked_at.append("items")
            return super().items()

        def values(self) -> Any:
            looked_at.append("values")
            return super().values()

    replicas = m.broker.services.replicas
    replicas.partitions = Recording(replicas.partitions)
    await client.alter_topic("t", retention_ms=12_345)
    assert looked_at == []
    await client.alter_broker(log_retention_ms=23_456)
    assert looked_at == ["values"]
    assert {partition.log.config.retention_ms for partition in partitions(m)} == {12_345}


@broker_test
async def test_a_second_change_during_the_first(m: Machine) -> None:
    clients = [await m.client(), await m.client()]
    await clients[0].create_topic("t", MANY)
    await asyncio.gather(*[client.alter_topic("t", retention_ms=n) for n, client in enumerate(clients)])
    assert len({partition.log.config for partition in partitions(m)}) == 1


@broker_test
async def test_a_stop_during_a_change(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", MANY)
    altered = asyncio.create_task(client.alter_topic("t", retention_ms=12_345))
    await m.until(lambda: any(partition.log.config.retention_ms == 12_345 for partition in partitions(m)))
    assert not altered.done()
    await m.restart()
    await asyncio.gather(altered, return_exceptions=True)
    assert {partition.log.config.retention_ms for partition in partitions(m)} == {12_345}


@broker_test
async def test_partitions_of_a_deleted_topic(m: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are hidden at once. The response is sent when all are closed and their directories are renamed."""
    client = await m.client()
    await client.create_topic("t", MANY)
    replicas, deleted = m.broker.services.replicas, partitions(m)
    counts = counts_between_turns(m, monkeypatch, lambda partition: replicas.get("t", 0) is not None)
    closed = counts_between_turns(m, monkeypatch, lambda partition: partition.is_closed)
    await client.delete_topic("t")
    assert any(0 < count < MANY for count in closed)
    assert set(counts) == {0}
    assert all(partition.is_closed for partition in deleted)
    assert not partitions(m)
    await client.create_topic("t", 1)
    assert (await client.produce("t", batch(b"a"))).base_offset == 0
