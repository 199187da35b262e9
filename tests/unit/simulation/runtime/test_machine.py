"""Machines on which a broker lives and dies, and the oracles that read its disk."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kbroker.simulation.checker.invariants import BrokenInvariant, Invariants
from kbroker.simulation.disk.log_files import durable_end, durable_ends, partition_directories, segment_files
from kbroker.simulation.runtime.host_loop import HostCrashed, HostLoop
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.simulation.runtime.machine import DATA, PORT, Machine
from tests.unit.support.client import Client, batch

CONFIGS = {"offsets.topic.num.partitions": "1", "auto.create.topics.enable": "true"}


class Story:
    def __init__(self, seed: int = 1, **configs: str) -> None:
        self.loop = SimLoop(seed)
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.machine = Machine(self.loop, seed, "broker", {**CONFIGS, **named})
        self.host = HostLoop(self.loop, "client", Random(seed))
        self.created = False

    async def produce(self, count: int) -> list[int]:
        """Offsets of so many batches that were acknowledged, one after the other. Raises OSError."""

        async def work() -> list[int]:
            _, client = await self.host.create_connection(lambda: Client(self.host), "broker", PORT)
            async with asyncio.timeout(10):
                if not self.created:
                    await client.create_topic("t", partitions=1)
                    self.created = True
                answers = [await client.produce("t", batch(b"%d" % number), version=11) for number in range(count)]
            assert not any(answer.error_code for answer in answers)
            client.close()
            return [answer.base_offset for answer in answers]

        return await self.host.run(work())


def story(tell: Callable[[Story], Awaitable[None]], **configs: str) -> None:
    one = Story(**configs)
    try:
        one.loop.run_until_complete(tell(one))
    finally:
        one.machine.discard()
        one.host.discard()
        one.loop.close()


def end(machine: Machine) -> int:
    assert machine.broker is not None
    partition = machine.broker.services.replicas.get("t", 0)
    assert partition is not None
    return partition.log.log_end_offset


def test_a_killed_process_loses_nothing():
    async def tell(s: Story) -> None:
        await s.machine.start()
        assert await s.produce(20) == list(range(20))
        s.machine.kill()
        await s.machine.start()
        assert end(s.machine) == 20

    story(tell)


def test_a_power_loss_takes_at_most_what_the_oracle_says():
    async def tell(s: Story) -> None:
        losses = []
        s.machine.on_process_end = lambda power: losses.append(durable_ends(s.machine.disk, DATA)["t", 0])
        acknowledged = 0
        for _ in range(10):
            await s.machine.start()
            if acknowledged:
                assert losses[-1] <= end(s.machine) <= acknowledged
            acknowledged = max(await s.produce(20)) + 1
            s.machine.power_off()
        assert min(losses) < acknowledged
        assert max(losses) > 0

    story(tell, **{"log_flush_interval_messages": "7"})


def test_under_flush_before_ack_a_power_loss_takes_nothing():
    async def tell(s: Story) -> None:
        acknowledged = 0
        for _ in range(10):
            await s.machine.start()
            assert end(s.machine) >= acknowledged if acknowledged else True
            acknowledged = max(await s.produce(5)) + 1
            assert durable_ends(s.machine.disk, DATA)["t", 0] == acknowledged
            s.machine.power_off()

    story(tell, **{"log_flush_interval_messages": "1"})


@pytest.mark.parametrize("changes", range(0, 60, 3))
def test_a_process_may_die_in_the_middle_of_any_change_of_the_disk(changes: int):
    async def tell(s: Story) -> None:
        s.machine.crash_after(changes, power=bool(changes % 2))
        acknowledged: list[int] = []
        try:
            await s.machine.start()
            acknowledged = await s.produce(30)
            await s.machine.stop()
        except (HostCrashed, OSError):
            assert s.machine.broker is None
        s.machine.cancel_crash()
        if s.machine.broker is None:
            await s.machine.start()
            Invariants(s.machine).check()
            if s.created:
                await s.produce(3)
        assert len(acknowledged) in (0, 30)

    story(tell, **{"log_flush_interval_messages": "1"})


def test_a_stopped_broker_comes_back_clean():
    async def tell(s: Story) -> None:
        await s.machine.start()
        await s.produce(5)
        await s.machine.stop()
        assert s.machine.disk.exists(f"{DATA}/.kafka_cleanshutdown")
        await s.machine.start()
        assert end(s.machine) == 5

    story(tell)


def test_a_broker_that_fails_ends_as_its_process_would():
    async def tell(s: Story) -> None:
        broker = await s.machine.start()
        broker.fail(OSError("it cannot go on"))
        await s.machine._ended
        assert s.machine.broker is None
        await s.machine.start()

    story(tell)


def damage(what: Callable[[Machine, Any], None]) -> Callable[[Story], Awaitable[None]]:
    async def tell(s: Story) -> None:
        broker = await s.machine.start()
        await s.produce(10)
        invariants = Invariants(s.machine)
        invariants.check()
        what(s.machine, broker.services.replicas.get("t", 0))
        with pytest.raises(BrokenInvariant):
            invariants.check()

    return tell


def test_invariants_see_a_high_watermark_that_goes_back():
    story(damage(lambda machine, partition: setattr(partition.state, "high_watermark", 3)))


def test_invariants_see_a_high_watermark_above_the_log():
    story(damage(lambda machine, partition: setattr(partition.state, "high_watermark", 11)))


def test_invariants_see_a_recovery_point_above_what_is_synced():
    story(damage(lambda machine, partition: setattr(partition.log, "recovery_point", 10)))


def test_invariants_see_a_leader_that_is_not_in_sync():
    story(damage(lambda machine, partition: setattr(partition.state, "isr", [7])))


def test_invariants_see_a_damaged_log():
    def rot(machine: Machine, partition: Any) -> None:
        (path,) = (path for _, path in segment_files(machine.disk, partition.log.directory))
        partition.log.active.file.append(b"no batch")
        assert durable_end(machine.disk, partition.log.directory) <= 10
        assert path

    story(damage(rot))


def test_partitions_are_found_by_their_directories():
    async def tell(s: Story) -> None:
        await s.machine.start()
        await s.produce(1)
        assert partition_directories(s.machine.disk, DATA) == {("t", 0): f"{DATA}/t-0"}

    story(tell)


def test_the_next_process_leads_in_a_later_epoch():
    async def tell(s: Story) -> None:
        await s.machine.start()
        await s.produce(1)
        first = Invariants(s.machine)
        first.check()
        s.machine.kill()
        broker = await s.machine.start()
        second = Invariants(s.machine, first)
        second.check()
        partition = broker.services.replicas.get("t", 0)
        assert second.led() == {(partition.topic_id, 0): partition.leader_epoch}
        # As if it had been led in this epoch before.
        with pytest.raises(BrokenInvariant, match="led in epoch"):
            Invariants(s.machine, second).check()

    story(tell)


def test_nobody_is_told_of_what_is_not_synced():
    async def tell(s: Story) -> None:
        broker = await s.machine.start()
        await s.produce(10)
        log = broker.services.replicas.get("t", 0).log
        log.flush_blocking(4)
        log.complete_flush(4)
        invariants = Invariants(s.machine)
        invariants.check_told(("t", 0), 4)
        with pytest.raises(BrokenInvariant, match="4 was told, and what is synced ends at 4"):
            invariants.check_told(("t", 0), 5)
        invariants.check_told(("other", 0), 5)

    story(tell)
