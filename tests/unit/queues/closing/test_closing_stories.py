"""Closing partitions between whole brokers: what producers send to them lands once in the partitions that remain."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.queues.closing import closing_topics, forwarder
from kbroker.queues.closing.forwarded_batches import forwarded_copy
from kbroker.queues.closing.forwarder import Forwarder
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import TRANSACTIONAL, BatchHeader, build_batch
from tests.unit.support.client import batch
from tests.unit.support.deletion import delete_records
from tests.unit.support.queue_cluster import (
    REOPENED,
    alter,
    closing,
    idempotent,
    leader_of,
    produce,
    until_applied,
    until_forwarded,
    visible,
)
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

ASSIGNMENT = ([1, 2], [2, 3], [3, 1])


@simulated(SimulatedCluster, range(2))
async def test_records_of_closing_partitions_land_in_those_that_remain(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    await produce(s, idempotent(b"a", 0), 2)
    await closing(s, 1)
    await produce(s, idempotent(b"b", 1), 2)
    await produce(s, idempotent(b"b", 1), 2)  # a retry
    await produce(s, idempotent(b"c", 2), 2)
    await produce(s, batch(b"d"), 1)
    async with asyncio.timeout(60):
        while sorted(await visible(s, 0)) != [b"b", b"c", b"d"]:
            await asyncio.sleep(0.2)
    assert [value for value in await visible(s, 0) if value != b"d"] == [b"b", b"c"]
    assert await visible(s, 2) == [b"a"]
    assert await visible(s, 1) == []


async def fail_over(s: SimulatedCluster) -> None:
    """The leader of the closing partition fails, then that of the one that remains, both at different times."""
    await s.create(*ASSIGNMENT)
    await produce(s, batch(b"first"), 2)
    await closing(s, 2)
    values = []
    for number in range(12):
        values.append(b"%d" % number)
        await produce(s, idempotent(values[-1], number), 2)
        if number in (3, 7, 9):
            victim = leader_of(s, 0 if number == 7 else 2)
            for session in s.service.sessions(f"b{victim}"):
                s.service.expire(session)
            await asyncio.sleep(10)
    await until_forwarded(s, 0, values)
    assert await visible(s, 2) == [b"first"]


@simulated(SimulatedCluster, range(3))
async def test_each_record_lands_once_when_leaders_fail(s: SimulatedCluster) -> None:
    await fail_over(s)


@simulated(SimulatedCluster, range(4))
async def test_each_record_lands_once_when_brokers_crash(s: SimulatedCluster) -> None:
    await s.create([1, 2, 3], [2, 3, 1], [3, 1, 2], min_insync_replicas="2")
    await produce(s, batch(b"first"), 2)
    await closing(s, 1)
    values = []
    for number in range(16):
        values.append(b"%d" % number)
        await produce(s, idempotent(values[-1], number), 2)
        if number % 4 == 3:
            # The leaders of the closing partition and of the one that remains take turns.
            victim = leader_of(s, 2 if number % 8 == 3 else 0) or 1
            if number < 8:
                s.machines[victim].kill()
            else:
                s.machines[victim].power_off()
            await asyncio.sleep(1)
            await s.machines[victim].start()
    await until_forwarded(s, 0, values)
    assert await visible(s, 2) == [b"first"]
    # Nothing is forwarded again later, by any leader.
    for _ in range(2):
        victim = leader_of(s, 2) or 1
        s.machines[victim].kill()
        await s.machines[victim].start()
        await s.until(lambda: leader_of(s, 0) is not None and leader_of(s, 2) is not None, 60)
        await asyncio.sleep(5)
        assert await visible(s, 0) == values


async def target_is_moved(s: SimulatedCluster) -> None:
    """What was forwarded is deleted, the target gets a new replica, and then the leader of the closing one fails."""
    await s.create([1, 2], [2, 3], [2, 1])
    await produce(s, batch(b"first"), 2)
    await closing(s, 2)
    values = [b"%d" % number for number in range(3)]
    for number, value in enumerate(values):
        await produce(s, idempotent(value, number), 2)
    await until_forwarded(s, 0, values)
    await asyncio.sleep(5)
    leader = leader_of(s, 0)
    assert leader is not None
    target = s.replica(leader, index=0)
    deleted = delete_records(s.broker(leader).services.replicas, target, target.high_watermark)
    await s.machines[leader].loop.run(deleted)
    await s.reassign([3])
    await s.until(lambda: leader_of(s, 0) == 3, 120)
    assert not await visible(s, 0)

    victim = leader_of(s, 2) or 2
    s.machines[victim].kill()
    await s.machines[victim].start()
    await produce(s, idempotent(b"last", 3), 2)
    await until_forwarded(s, 0, [b"last"])
    await asyncio.sleep(5)
    assert await visible(s, 0) == [b"last"]
    assert await visible(s, 2) == [b"first"]


@simulated(SimulatedCluster, range(2))
async def test_nothing_is_forwarded_again_when_the_target_has_forgotten_it(s: SimulatedCluster) -> None:
    await target_is_moved(s)


# Mistakes that the stories above catch.


def sequences_restart(patch: pytest.MonkeyPatch) -> None:
    """Each forwarder begins its sequences at zero, instead of deriving them from the log."""
    sequences: dict[int, int] = {}

    class Restarting(Forwarder):
        def __init__(self, environment: Any, partition: Any, forwarding: Any, send: Any) -> None:
            super().__init__(environment, partition, forwarding, send)
            sequences[self._producer_id] = 0

    def forward(data: Any, header: BatchHeader, producer_id: int) -> bytearray:
        number = sequences[producer_id]
        sequences[producer_id] += header.last_offset_delta + 1
        return forwarded_copy(data, header._replace(base_offset=number), producer_id)

    patch.setattr(closing_topics, "Forwarder", Restarting)
    patch.setattr(forwarder, "forwarded_copy", forward)


def target_forgets(patch: pytest.MonkeyPatch) -> None:
    """What was forwarded is stored again."""
    patch.setattr(ProducerStateManager, "first_of_last_batch", lambda self, producer_id: None)


def progress_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Only the target knows what was forwarded."""
    patch.setattr(Forwarder, "_store_progress", lambda self: None)


@pytest.mark.parametrize(
    ("plant", "story"),
    [(sequences_restart, fail_over), (target_forgets, fail_over), (progress_is_forgotten, target_is_moved)],
)
def test_mistakes_are_caught(
    plant: Callable[[pytest.MonkeyPatch], None], story: Callable[[SimulatedCluster], Awaitable[None]]
) -> None:
    cluster = SimulatedCluster(0)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, TimeoutError)):
            cluster.run(story)


@simulated(SimulatedCluster, range(2))
async def test_transactions_are_forwarded_after_their_commit(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    await produce(s, batch(b"first"), 2)
    await closing(s, 2)
    await until_applied(s, 2, is_active=True)
    leader = leader_of(s, 2)
    assert leader is not None
    partition, services = s.replica(leader, index=2), s.broker(leader).services

    def append(producer_id: int, value: bytes, attributes: int = TRANSACTIONAL) -> None:
        records = build_batch(
            [(0, None, value, [])],
            producer_id=producer_id, producer_epoch=0, base_sequence=0 if attributes else -1, attributes=attributes,
        )  # fmt: skip
        if not attributes:
            records = batch(value)
        partition.append_as_leader(
            memoryview(bytearray(records)), -1, 12, services.environment.clock.now_ms(), bool(attributes)
        )

    async def on_machine() -> None:
        append(11, b"committed")
        append(12, b"aborted")
        append(0, b"plain", 0)

    await s.machines[leader].loop.run(on_machine())
    await asyncio.sleep(2)
    # A later record waits for the transactions before it, as for a consumer that reads committed records.
    assert await visible(s, 0) == []

    async def end() -> None:
        for producer_id, committed in ((11, True), (12, False)):
            services.marker_writer.write(
                partition.tp, TransactionMarker(producer_id, 0, committed, 0, 0), lambda code: None
            )

    await s.machines[leader].loop.run(end())
    await until_forwarded(s, 0, [b"committed", b"plain"])


@simulated(SimulatedCluster, range(2))
async def test_closing_is_cancelled(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    await produce(s, idempotent(b"a", 0), 2)
    await closing(s, 2)
    await produce(s, idempotent(b"b", 1), 2)
    response = await alter(s, 3)
    assert (response.error_code, response.outcome) == (0, REOPENED)
    await until_applied(s, 2, is_active=False)
    await produce(s, idempotent(b"b", 1), 2)  # a retry of what was hidden
    await produce(s, idempotent(b"c", 2), 2)
    await until_forwarded(s, 0, [b"b"])
    assert await visible(s, 2) == [b"a", b"c"]
    # The producer of what is forwarded continues.
    await closing(s, 2)
    await until_applied(s, 2, is_active=True)
    await produce(s, idempotent(b"d", 3), 2)
    await until_forwarded(s, 0, [b"b", b"d"])
    assert await visible(s, 2) == [b"a", b"c"]
    assert (await alter(s, 1)).error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert (await alter(s, -1)).first_closing == 2


@simulated(SimulatedCluster, range(2))
async def test_retention_goes_on_after_a_cancellation(s: SimulatedCluster) -> None:
    """The partition keeps its forwarder, but records that it need not forward any more may be deleted."""
    await s.create(*ASSIGNMENT)
    await closing_with(s, b"a", b"hidden")
    assert (await alter(s, 3)).outcome == REOPENED
    await until_applied(s, 2, is_active=False)
    await produce(s, idempotent(b"c", 2), 2)
    await produce(s, idempotent(b"d", 3), 2)
    await until_forwarded(s, 0, [b"hidden"])
    leader = leader_of(s, 2)
    assert leader is not None
    partition = s.replica(leader, index=2)
    assert partition.retention_limit is not None
    await s.until(lambda: partition.retention_limit(0) == partition.log.log_end_offset, 10)

    delete = partial(delete_records, s.broker(leader).services.replicas)
    end = partition.high_watermark
    with pytest.raises(KafkaError) as error_info:
        await s.machines[leader].loop.run(delete(partition, end + 1))
    assert error_info.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    await s.machines[leader].loop.run(delete(partition, end))
    assert partition.log.log_start_offset == end
    # The next leader has nothing to forward.
    s.machines[leader].kill()
    await s.machines[leader].start()
    await produce(s, idempotent(b"e", 4), 2)
    assert await visible(s, 2) == [b"e"]
    await asyncio.sleep(5)
    assert await visible(s, 0) == [b"hidden"]


async def closing_with(s: SimulatedCluster, before: bytes, hidden: bytes) -> None:
    """Close partition 2, with a record from before and one from after that."""
    await produce(s, idempotent(before, 0), 2)
    await closing(s, 2)
    await produce(s, idempotent(hidden, 1), 2)


@simulated(SimulatedCluster, range(2))
async def test_records_from_between_two_closings_are_not_taken_for_hidden_ones(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    await produce(s, idempotent(b"a", 0), 2)
    await closing(s, 2)
    await produce(s, idempotent(b"hidden", 1), 2)
    assert (await alter(s, 3)).outcome == REOPENED
    await until_applied(s, 2, is_active=False)
    await produce(s, idempotent(b"between", 2), 2)
    await until_forwarded(s, 0, [b"hidden"])
    leader = leader_of(s, 2)
    assert leader is not None
    await s.machines[leader].loop.run(delete_records(s.broker(leader).services.replicas, s.replica(leader, index=2), 2))
    await closing(s, 2)
    await until_applied(s, 2, is_active=True)
    # The controller looks for emptied partitions every ten seconds.
    await asyncio.sleep(40)
    assert len(s.broker(1).services.metadata.topics["t"].partitions) == 3
    assert await visible(s, 2) == [b"between"]


@simulated(SimulatedCluster, range(1))
async def test_topics_that_cannot_close_partitions(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT, cleanup_policy="compact")
    await produce(s, batch(b"a", key=b"k"), 2)
    response = await alter(s, 2)
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert response.error_message is not None
    assert "cleanup.policy=compact" in response.error_message
    await produce(s, batch(b"b", key=b"k"), 2)


@simulated(SimulatedCluster, range(1))
async def test_configs_that_contradict_closing_are_refused(s: SimulatedCluster) -> None:
    await s.create(*ASSIGNMENT)
    await produce(s, batch(b"a"), 2)
    await closing(s, 2)
    with pytest.raises(KafkaError, match=r"cleanup\.policy cannot be changed"):
        await s.alter_topic("t", {"cleanup.policy": "compact"})
