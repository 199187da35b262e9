"""Shapes restrict a plan: faults, their frequency, durations, programs. The seed draws everything else."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.log_files import read_batches, segment_files
from kbroker.simulation.network.link import ANY
from kbroker.simulation.scenarios.faults import CLOCK, DISK, LOST_FILES, NETWORK, NODE, POWER, ROT, Fault
from kbroker.simulation.scenarios.plan import Plan
from kbroker.simulation.scenarios.simulation import Simulation
from kbroker.storage.file_names import LOG, SWAP

Shape = Callable[[Plan], object]

NEVER = 1 << 62
SLOW_SYNC_NS = 5_000_000_000

FAULTS: dict[str, Fault] = {**NODE, **NETWORK, **DISK, **POWER, **ROT, **CLOCK, **LOST_FILES}


def changed(shape: Shape, change: Shape) -> Shape:
    """Change a plan further after a shape has restricted it."""

    def shaped(plan: Plan) -> None:
        shape(plan)
        change(plan)

    return shaped


def with_values(shape: Shape, **values: Any) -> Shape:
    """Set values of the plan after a shape has restricted it."""
    return changed(shape, lambda plan: [setattr(plan, name, value) for name, value in values.items()])


def short(seconds: float = 4.0, **values: Any) -> Shape:
    """Limit the duration of the plan, and set some of its values."""

    def shape(plan: Plan) -> None:
        plan.seconds = min(plan.seconds, seconds)
        plan.pause_s = min(plan.pause_s, 1.0)
        plan.recreation = plan.group_changes = False

    return with_values(shape, **values)


def only(*faults: str | Fault, seconds: float = 4.0, pause_s: float = 0.3, **values: Any) -> Shape:
    """Use these faults only, one at a time, `pause_s` seconds apart."""
    chosen = {fault: FAULTS[fault] if isinstance(fault, str) else fault for fault in faults}

    def shape(plan: Plan) -> None:
        plan.faults = {name if isinstance(name, str) else name.__name__: fault for name, fault in chosen.items()}
        plan.concurrent_faults, plan.pause_s, plan.seconds = int(bool(faults)), pause_s, seconds
        plan.recreation = plan.group_changes = False

    return with_values(shape, **values)


def _dotted(configs: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}


def topics(shape: Shape, **configs: str) -> Shape:
    """Add topic configs; underscores in the names stand for dots."""
    return changed(shape, lambda plan: [topic.configs.update(_dotted(configs)) for topic in plan.topics.values()])


def broker(shape: Shape, **configs: str) -> Shape:
    """Add broker configs; underscores in the names stand for dots."""
    return changed(shape, lambda plan: plan.broker.update(_dotted(configs)))


def compacted(shape: Shape, keys: int) -> Shape:
    """Use small compacted topics that are synced only when a segment rolls."""
    return topics(
        changed(shape, lambda plan: plan.compact(Random(0), keys)),
        internal_segment_bytes="2048",
        min_cleanable_dirty_ratio="0",
        max_compaction_lag_ms="500",
        flush_messages=str(NEVER),
        flush_ms=str(NEVER),
    )


def one_partition(shape: Shape, partitions: int = 1) -> Shape:
    """Use one topic, by default with one partition."""

    def reduce(plan: Plan) -> None:
        plan.topics = dict(list(plan.topics.items())[:1])
        for topic in plan.topics.values():
            topic.partitions = partitions

    return changed(shape, reduce)


async def blink(simulation: Simulation, random: Random) -> None:
    """Lose power, sometimes in the middle of a disk operation, and restart at once."""
    await _die(simulation, random, power=True)


async def blink_while_syncs_are_slow(simulation: Simulation, random: Random) -> None:
    """Lose power while several segments are not synced."""
    simulation.machine.disk.faults.slow_sync_ns = SLOW_SYNC_NS
    await asyncio.sleep(random.uniform(0.05, 0.3))
    simulation.machine.power_off()
    simulation.machine.disk.faults.slow_sync_ns = 0


async def blink_between_swaps(simulation: Simulation, random: Random) -> None:
    """Kill the process while several segments are not synced. After its restart lose power when a compacted segment may
    be durable and others are not. From the kill on nothing is produced, so no later record supersedes a lost one."""
    machine = simulation.machine
    machine.disk.faults.slow_sync_ns = SLOW_SYNC_NS
    await asyncio.sleep(random.uniform(0.5, 1.5))
    machine.disk.faults.slow_sync_ns = 0
    machine.kill()
    producers = [client for client in simulation.clients if client.host.startswith("producer")]
    for producer in producers:
        producer.pause()
    try:
        await simulation.until_serving()
        await _until(simulation, lambda: bool(machine.disk.find(LOG + SWAP)), 2.0)
        await asyncio.sleep(random.random() * 0.06)
        machine.power_off()
        await asyncio.sleep(NEVER)
    finally:
        for producer in producers:
            producer.resume()


async def die_in_a_swap(simulation: Simulation, random: Random) -> None:
    """Kill the process, or lose power, between the renames that replace segments by a compacted segment."""
    machine = simulation.machine
    await _until(simulation, lambda: _replaces_several(machine.disk), 3.0)
    if machine.broker is not None and _replaces_several(machine.disk):
        machine.crash_after(random.randrange(6), power=random.random() < 0.5)
        await asyncio.sleep(0.2)
        machine.cancel_crash()


def _replaces_several(disk: SimDisk) -> bool:
    """Return whether a compacted segment is complete, and several segments that it replaces are still there."""
    for path in disk.find(LOG + SWAP):
        directory, _, name = path.rpartition("/")
        end = max([batch.header.next_offset for batch in read_batches(disk.data(path))], default=0)
        if sum(int(name[:20]) <= base < end for base, _ in segment_files(disk, directory)) > 1:
            return True
    return False


async def _until(simulation: Simulation, condition: Callable[[], bool], seconds: float) -> None:
    deadline = simulation.sim_loop.time() + seconds
    while not condition() and simulation.sim_loop.time() < deadline:
        await asyncio.sleep(0.0005)


async def crash(simulation: Simulation, random: Random) -> None:
    """Kill the process, sometimes in the middle of a disk operation."""
    await _die(simulation, random, power=False)


async def _die(simulation: Simulation, random: Random, *, power: bool) -> None:
    broker, machine = simulation.machine.broker, simulation.machine
    if random.random() < 0.5:
        machine.crash_after(random.randrange(30), power=power)
        await asyncio.sleep(0.2)
        machine.cancel_crash()
    if broker is not None and machine.broker is broker:
        if power:
            machine.power_off()
        else:
            machine.kill()


async def unheard_stop(simulation: Simulation, random: Random) -> None:
    """Stop the broker in an orderly way, and lose its last responses."""
    if not simulation.serving or simulation.machine.paused:
        return
    network, way = simulation.network.faults, (simulation.machine.name, ANY)
    with simulation.down():
        network.cut(*way)
        await asyncio.sleep(random.random() * 0.1)
        if simulation.serving:
            await simulation.machine.stop()
        network.restore(*way)


async def slow_syncs(simulation: Simulation, random: Random) -> None:
    """Make syncs as slow as the timeout of some transactions."""
    simulation.machine.disk.faults.slow_sync_ns = random.randrange(300, 1500) * 1_000_000
    await asyncio.sleep(3.0)
    simulation.machine.disk.faults.slow_sync_ns = 0


async def syncs_fail(simulation: Simulation, random: Random) -> None:
    """Make every third sync fail for a second."""
    simulation.machine.disk.faults.sync = 0.3
    await asyncio.sleep(1.0)
    simulation.machine.disk.faults.sync = 0.0


async def member_out_of_reach(simulation: Simulation, random: Random) -> None:
    """Cut a group member off until its session has timed out."""
    member = random.choice([client.host for client in simulation.clients if client.host.startswith("member")])
    network = simulation.network.faults
    simulation.note(f"{member} is out of reach")
    for pair in ((member, simulation.machine.name), (simulation.machine.name, member)):
        network.cut(*pair)
    await asyncio.sleep(random.uniform(8.0, 14.0))
    for pair in ((member, simulation.machine.name), (simulation.machine.name, member)):
        network.restore(*pair)
    simulation.note(f"{member} is back")


async def start_without_room(simulation: Simulation, random: Random) -> None:
    """Start the broker on a full disk, which then has space for some batches, and finally for all."""
    disk = simulation.machine.disk
    disk.capacity = disk.used
    with simulation.down():
        if simulation.machine.broker is not None:
            simulation.machine.kill()
    await asyncio.sleep(0.5)
    disk = simulation.machine.disk
    disk.capacity = disk.used + 250
    await asyncio.sleep(1.0 + random.random())
    simulation.machine.disk.capacity = None
    await asyncio.sleep(0.5)
