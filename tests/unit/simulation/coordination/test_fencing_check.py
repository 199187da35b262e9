"""A broker that only the coordination service cannot reach: other brokers tell it that it has been replaced."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.coordination.interface import Delete
from kbroker.metadata.store import znodes
from kbroker.simulation.coordination.service import SESSION_MS, SimCoordination
from kbroker.simulation.runtime.machine import Machine
from tests.unit.support.simulated_hosts import SimulatedHosts, simulated

SESSION_S = SESSION_MS / 1000


class ThreeBrokers(SimulatedHosts):
    """Three brokers, named 1, 2 and 3, and their coordination service."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.service = SimCoordination(self.loop, Random(f"{seed}/coordination"))
        configs = {
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "3",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
        }
        self.machines = {
            number: Machine(self.loop, seed, f"broker{number}", {**configs, "node.id": str(number)}, self.service)
            for number in (1, 2, 3)
        }

    async def start(self) -> None:
        for machine in self.machines.values():
            await machine.start()
        creating = self.broker(1).services.auto_topic_creation.ensure_internal_topic("__consumer_offsets")
        await self.machines[1].loop.run(creating)
        await self.until(lambda: all(len(self.led(number)) == 1 for number in self.machines), 30)

    def discard(self) -> None:
        for machine in self.machines.values():
            machine.discard()
        super().discard()

    def broker(self, number: int) -> Any:
        assert self.machines[number].broker is not None
        return self.machines[number].broker

    def led(self, number: int) -> list[str]:
        """Return the partitions that a broker believes to lead."""
        partitions = self.broker(number).services.replicas.partitions.values()
        return [str(partition.tp) for partition in partitions if partition.is_leader]

    def controls(self, number: int) -> bool:
        return bool(self.broker(number).services.controller.is_elected)

    def isr(self, number: int, partition: int) -> list[int]:
        """Return the ISR of a partition of __consumer_offsets as a broker knows it."""
        isr = self.broker(number).services.metadata.topics["__consumer_offsets"].partitions[partition].isr
        return sorted(isr)

    def epoch(self, number: int) -> int:
        """Return the broker epoch in the broker's own image, 0 while it is fenced there."""
        registration = self.broker(number).services.metadata.brokers.get(number)
        return registration.epoch if registration is not None else 0


SEEDS = range(5)


@simulated(ThreeBrokers, SEEDS)
async def test_a_broker_that_the_service_has_given_up_leads_no_longer(s: ThreeBrokers) -> None:
    for number in s.machines:
        epoch = s.epoch(number)
        s.service.cut(f"broker{number}")
        await s.until(lambda number=number: not s.led(number), 2 * SESSION_S + 10)
        others = [other for other in s.machines if other != number]
        await s.until(lambda others=others: sum(len(s.led(other)) for other in others) == 3, 10)
        # It refers clients to the others as long as it cannot join again: librdkafka asks it for metadata repeatedly.
        assert number not in s.broker(number).services.metadata.brokers
        s.service.heal(f"broker{number}")
        await s.until(lambda number=number, epoch=epoch: s.epoch(number) > epoch, 30)


def test_a_broker_whose_node_was_deleted_joins_again(caplog: pytest.LogCaptureFixture) -> None:
    """It has a session, so nothing but another broker tells it that it is fenced."""

    @simulated(ThreeBrokers, SEEDS)
    async def story(s: ThreeBrokers) -> None:
        for number in s.machines:
            epoch = s.epoch(number)
            s.service.write([Delete(znodes.broker_path(number))])
            await s.until(lambda number=number, epoch=epoch: s.epoch(number) > epoch, 30)
            await s.until(lambda: all(s.isr(1, index) == [1, 2, 3] for index in range(3)), 30)

    story(1)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["another broker reports that this one is fenced: joining the cluster again"] * 3


@simulated(ThreeBrokers, SEEDS)
async def test_an_outage_of_the_service_changes_nothing(s: ThreeBrokers) -> None:
    led = {number: s.led(number) for number in s.machines}
    for number in s.machines:
        s.service.cut(f"broker{number}")
    for _ in range(60):
        await asyncio.sleep(1)
        assert {number: s.led(number) for number in s.machines} == led
