"""Machines on which a broker starts, stops and crashes, and the oracles that read their disks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker.simulation.disk.log_files import durable_end, durable_ends, partition_directories
from kbroker.simulation.invariants.broker import BrokenInvariant, Invariants
from kbroker.simulation.runtime.host_loop import HostCrashed
from kbroker.simulation.runtime.machine import DATA, PORT, Machine
from tests.unit.support.client import Client, batch
from tests.unit.support.simulated_hosts import SimulatedHosts, simulated

CONFIGS = {"offsets.topic.num.partitions": "1", "auto.create.topics.enable": "true"}
FLUSH = "log.flush.interval.messages"


class OneBroker(SimulatedHosts):
    def __init__(self, seed: int = 1, flush_interval: str = "") -> None:
        super().__init__(seed)
        configs = {**CONFIGS, FLUSH: flush_interval} if flush_interval else CONFIGS
        self.machine = Machine(self.loop, seed, "broker", configs)
        self.created = False

    def discard(self) -> None:
        self.machine.discard()
        super().discard()

    async def produce(self, count: int) -> int:
        """Produce batches one after another, at the next offsets; return the offset after them. Raises OSError."""
        host = self.host("client")

        async def produce() -> list[int]:
            _, client = await host.create_connection(lambda: Client(host), "broker", PORT)
            async with asyncio.timeout(10):
                if not self.created:
                    await client.create_topic("t", partitions=1)
                    self.created = True
                responses = [await client.produce("t", batch(b"%d" % number), version=11) for number in range(count)]
            assert not any(response.error_code for response in responses)
            client.close()
            return [response.base_offset for response in responses]

        offsets = await host.run(produce())
        assert offsets == list(range(offsets[0], offsets[0] + count))
        return offsets[-1] + 1

    @property
    def partition(self) -> Any:
        assert self.machine.broker is not None
        return self.machine.broker.services.replicas.get("t", 0)

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset  # type: ignore[no-any-return]


broker_test = simulated(OneBroker, [1])


@broker_test
async def test_a_killed_or_stopped_broker_loses_nothing(s):
    await s.machine.start()
    assert await s.produce(20) == 20
    s.machine.kill()
    await s.machine.start()
    assert s.end == 20
    await s.machine.stop()
    assert s.machine.disk.exists(f"{DATA}/.kafka_cleanshutdown")
    await s.machine.start()
    assert s.end == 20
    assert partition_directories(s.machine.disk, DATA) == {("t", 0): f"{DATA}/t-0"}


@simulated(lambda seed: OneBroker(seed, flush_interval="7"), [1])
async def test_a_power_loss_keeps_the_durable_records(s):
    losses = []
    s.machine.on_process_end = lambda power: losses.append(durable_ends(s.machine.disk, DATA)["t", 0])
    acknowledged = lost = 0
    for _ in range(10):
        await s.machine.start()
        if acknowledged:
            assert losses[-1] <= s.end <= acknowledged
            lost += acknowledged - s.end
        acknowledged = await s.produce(20)
        s.machine.power_off()
    assert 0 < min(losses) < acknowledged
    assert lost


@simulated(lambda seed: OneBroker(seed, flush_interval="1"), [1])
async def test_with_flush_before_ack_a_power_loss_loses_nothing(s):
    acknowledged = 0
    for _ in range(10):
        await s.machine.start()
        assert not acknowledged or s.end >= acknowledged
        acknowledged = await s.produce(5)
        assert durable_ends(s.machine.disk, DATA)["t", 0] == acknowledged
        s.machine.power_off()


@pytest.mark.parametrize("changes", range(0, 60, 3))
def test_a_broker_recovers_from_a_crash_in_any_change_of_the_disk(changes: int):
    async def test(s: OneBroker) -> None:
        s.machine.crash_after(changes, power=bool(changes % 2))
        try:
            await s.machine.start()
            await s.produce(30)
            await s.machine.stop()
        except (HostCrashed, OSError):
            assert s.machine.broker is None
        s.machine.cancel_crash()
        if s.machine.broker is None:
            await s.machine.start()
            Invariants(s.machine).check()
            if s.created:
                await s.produce(3)

    OneBroker(flush_interval="1").run(test)


@broker_test
async def test_a_broker_that_fails_ends_its_process(s):
    broker = await s.machine.start()
    broker.fail(OSError("it cannot continue"))
    await s.until(lambda: s.machine.broker is None)
    await s.machine.start()


def append_garbage(partition: Any) -> None:
    partition.log.active.file.append(b"no batch")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda partition: setattr(partition.state, "high_watermark", 3), id="high watermark decreases"),
        pytest.param(lambda partition: setattr(partition.state, "high_watermark", 11), id="high watermark above LEO"),
        pytest.param(lambda partition: setattr(partition.log, "recovery_point", 10), id="recovery point not synced"),
        pytest.param(lambda partition: setattr(partition.state, "isr", [7]), id="leader not in ISR"),
        pytest.param(append_garbage, id="damaged log"),
    ],
)
def test_invariants_detect(damage: Callable[[Any], None]):
    async def test(s: OneBroker) -> None:
        await s.machine.start()
        await s.produce(10)
        invariants = Invariants(s.machine)
        invariants.check()
        damage(s.partition)
        with pytest.raises(BrokenInvariant):
            invariants.check()
        assert durable_end(s.machine.disk, s.partition.log.directory) <= 10

    OneBroker().run(test)


@broker_test
async def test_invariants_detect_a_leader_epoch_that_is_used_again(s):
    await s.machine.start()
    await s.produce(1)
    first = Invariants(s.machine)
    first.check()
    s.machine.kill()
    await s.machine.start()
    second = Invariants(s.machine, first)
    second.check()
    assert second.leader_epochs() == {(s.partition.topic_id, 0): s.partition.leader_epoch}
    with pytest.raises(BrokenInvariant, match="was used by an earlier process"):
        Invariants(s.machine, second).check()


@broker_test
async def test_invariants_detect_an_acknowledged_record_that_is_not_synced(s):
    await s.machine.start()
    await s.produce(10)
    s.partition.log.durability.flush_blocking(4)
    s.partition.log.complete_flush(4)
    invariants = Invariants(s.machine)
    invariants.check_exposed(("t", 0), 4)
    with pytest.raises(BrokenInvariant, match="a client saw offset 4, but the recovery point is 4"):
        invariants.check_exposed(("t", 0), 5)
    invariants.check_exposed(("other", 0), 5)
