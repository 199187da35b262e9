"""The faults of a run. Each function injects one fault and ends it.

A fault acts on the simulation and adds notes to the history. Faults of different kinds may overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from kbroker.simulation.checker.history import Loss, TopicPartition
from kbroker.simulation.disk.log_files import (
    GROUPS_TOPIC,
    partition_directories,
    read_batches,
    readable_commits,
    segment_files,
)
from kbroker.simulation.network.link import ANY
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.file_names import INDEX, TIME_INDEX, TRANSACTION_INDEXES, TXN_INDEX
from protocol.records.batch import LENGTH_OVERHEAD, MAGIC_POS

if TYPE_CHECKING:
    from random import Random

    from kbroker.simulation.runtime.machine import Machine
    from kbroker.simulation.scenarios.simulation import Simulation

Fault = Callable[["Simulation", "Random"], Awaitable[None]]

HOUR_MS = 3_600_000
# Ranges of a fault's duration, for example of a cut link, in seconds.
SHORT_S, LONG_S = (0.001, 0.5), (0.5, 20.0)
# A crash in the middle of an operation happens within this number of disk changes.
CHANGES_TO_CRASH = 40
CRASH_TIMEOUT_S = 5.0
INDEX_FILES = (INDEX, TIME_INDEX, TXN_INDEX)
# The share of network faults that are between two brokers, if there are several.
BETWEEN_BROKERS = 0.5


def _seconds(random: Random) -> float:
    return random.uniform(*(SHORT_S if random.random() < 0.7 else LONG_S))


# Nodes.


async def restart(simulation: Simulation, random: Random) -> None:
    """Stop the broker in an orderly way; the supervisor starts it again."""
    await _restart(simulation, random, simulation.draw_machine(random))


async def _restart(simulation: Simulation, random: Random, machine: Machine) -> None:
    with simulation.down(machine):
        if machine.services is None or machine.paused:
            return
        simulation.note_of(machine, "SIGTERM")
        await machine.stop()
        simulation.note_of(machine, "stopped")
        await asyncio.sleep(_seconds(random))


async def kill(simulation: Simulation, random: Random) -> None:
    """Kill the broker (kill -9) between two callbacks of the event loop, or in the middle of a disk operation."""
    await crash(simulation, random, simulation.draw_machine(random), power=False)


async def power(simulation: Simulation, random: Random) -> None:
    """Power off the machine between two callbacks, or in the middle of a disk operation."""
    await crash(simulation, random, simulation.draw_machine(random), power=True)


async def crash(simulation: Simulation, random: Random, machine: Machine, *, power: bool) -> None:
    """Kill the broker of a machine, or power it off."""
    name = "power loss" if power else "kill -9"
    with simulation.down(machine):
        broker = machine.broker
        if broker is None:
            return
        if random.random() < 0.5:
            machine.crash_after(random.randrange(CHANGES_TO_CRASH), power=power)
            deadline = simulation.sim_loop.time() + CRASH_TIMEOUT_S
            while machine.broker is broker and simulation.sim_loop.time() < deadline:
                await asyncio.sleep(0.001)
        if machine.broker is broker:
            simulation.note_of(machine, name)
            if power:
                machine.power_off()
            else:
                machine.kill()
        else:
            simulation.note_of(machine, f"{name} in the middle of a disk operation")
        await asyncio.sleep(_seconds(random))


async def pause(simulation: Simulation, random: Random) -> None:
    """Pause the process for some time (SIGSTOP)."""
    machine = simulation.draw_machine(random)
    broker = machine.broker
    if broker is None or machine.paused:
        return
    simulation.note_of(machine, "paused")
    machine.pause()
    await asyncio.sleep(random.choice((0.01, 0.3, 2.0, 15.0)) * random.random())
    if machine.broker is broker:
        machine.resume()
        simulation.note_of(machine, "resumed")


async def stall(simulation: Simulation, random: Random) -> None:
    """Pause a client, perhaps for longer than its session timeout."""
    client = random.choice(simulation.clients)
    if client.paused:
        return
    simulation.note(f"{client.host} stalls")
    client.pause()
    try:
        await asyncio.sleep(random.choice((0.1, 3.0, 20.0)) * random.random())
    finally:
        client.resume()
        simulation.note(f"{client.host} resumes")


async def clock(simulation: Simulation, random: Random) -> None:
    """Make the wall clock jump forward or back, and correct it after some time."""
    machine = simulation.draw_machine(random)
    skew_ms = random.choice((-HOUR_MS, HOUR_MS, -1000, 1000, 60_000)) * random.randint(1, 5)
    simulation.note_of(machine, f"the wall clock jumps by {skew_ms / 1000} s")
    machine.clock.skew_ms += skew_ms
    await asyncio.sleep(_seconds(random))
    machine.clock.skew_ms -= skew_ms
    simulation.note_of(machine, f"the wall clock is corrected by {-skew_ms / 1000} s")


# The network.


def _draw_pair(simulation: Simulation, random: Random) -> tuple[str, str]:
    """Return a client, any host or another broker, and a broker."""
    if len(simulation.machines) > 1 and random.random() < BETWEEN_BROKERS:
        one, other = random.sample(simulation.machines, 2)
        return one.name, other.name
    client = random.choice([ANY, *(client.host for client in simulation.clients)])
    return client, simulation.draw_machine(random).name


async def cut(simulation: Simulation, random: Random) -> None:
    """Cut the link between a broker and one client, all hosts or another broker, in one or both directions."""
    client, broker = _draw_pair(simulation, random)
    faults = simulation.network.faults
    ways = random.choice((((client, broker),), ((broker, client),), ((client, broker), (broker, client))))
    simulation.note("cut: " + ", ".join(f"{source} to {target}" for source, target in ways))
    for source, target in ways:
        faults.cut(source, target)
    await asyncio.sleep(_seconds(random))
    for source, target in ways:
        faults.restore(source, target)
    simulation.note("the cut has ended")


async def clog(simulation: Simulation, random: Random) -> None:
    """Delay all data of a link, which then arrives at once."""
    pair = list(_draw_pair(simulation, random))
    random.shuffle(pair)
    seconds = _seconds(random)
    simulation.note(f"clogged for {seconds:.3f} s: {pair[0]} to {pair[1]}")
    simulation.network.faults.clog(pair[0], pair[1], seconds)
    await asyncio.sleep(seconds)


async def slow(simulation: Simulation, random: Random) -> None:
    """Give a link low bandwidth and high, variable latency."""
    pair = list(_draw_pair(simulation, random))
    random.shuffle(pair)
    faults = simulation.network.faults
    simulation.note(f"slow: {pair[0]} to {pair[1]}")
    faults.slow(pair[0], pair[1], random.choice((1_000.0, 30_000.0, 1_000_000.0)))
    faults.latency(pair[0], pair[1], (0.001, random.choice((0.01, 0.2, 1.0))))
    await asyncio.sleep(_seconds(random))
    faults.restore(pair[0], pair[1])
    simulation.note("no longer slow")


async def reset(simulation: Simulation, random: Random) -> None:
    """Reset connections in the middle of data, or make them half-open."""
    faults = simulation.network.faults
    client, broker = _draw_pair(simulation, random)
    what = random.random()
    if what < 0.2:
        count = faults.blackhole(client, broker)
        simulation.note(f"{count} connections of {client} become half-open")
    elif what < 0.4:
        simulation.note("some of all that arrives is followed by a reset")
        simulation.network.reset_chance = random.choice((0.001, 0.01))
        await asyncio.sleep(_seconds(random))
        simulation.network.reset_chance = 0.0
    else:
        for _ in range(random.randint(1, 4)):
            if faults.reset_any(client, broker):
                simulation.note(f"a connection of {client} is reset")
            await asyncio.sleep(random.random() * 0.05)


# The disk.


async def disk_error(simulation: Simulation, random: Random) -> None:
    """Make reads, writes or syncs fail. Logs that go offline return only after a restart, so the broker restarts."""
    machine = simulation.draw_machine(random)
    faults = machine.disk.faults
    operation = random.choice(("read", "write", "sync"))
    chance = random.choice((0.01, 0.1, 0.5))
    simulation.note_of(machine, f"one of {1 / chance:.0f} {operation} operations of the disk fails")
    setattr(faults, operation, chance)
    await asyncio.sleep(_seconds(random))
    setattr(faults, operation, 0.0)
    simulation.note_of(machine, "the disk no longer fails")
    await _restart_or_kill(simulation, random, machine)


async def _restart_or_kill(simulation: Simulation, random: Random, machine: Machine) -> None:
    if random.choice((True, False)):
        await _restart(simulation, random, machine)
    else:
        await crash(simulation, random, machine, power=False)


async def full(simulation: Simulation, random: Random) -> None:
    """Fill the disk, and free space later."""
    machine = simulation.draw_machine(random)
    disk = machine.disk
    simulation.note_of(machine, "the disk is full")
    disk.capacity = disk.used + random.choice((0, 100, 5_000))
    await asyncio.sleep(_seconds(random))
    # A crash in between has replaced the disk object.
    machine.disk.capacity = disk.capacity = None
    simulation.note_of(machine, "the disk has space again")


async def read_only(simulation: Simulation, random: Random) -> None:
    """Make the file system read-only, and later writable again. Logs that went offline return only after a restart."""
    machine = simulation.draw_machine(random)
    simulation.note_of(machine, "the file system is read-only")
    machine.disk.read_only = True
    await asyncio.sleep(_seconds(random))
    machine.disk.read_only = False
    simulation.note_of(machine, "the file system is writable")
    partitions = simulation.supervisors[machine.name].partitions()
    if random.random() < 0.5 or any(partition.log.health.offline for partition in partitions):
        await _restart_or_kill(simulation, random, machine)


async def out_of_files(simulation: Simulation, random: Random) -> None:
    """Make all or most opens fail with EMFILE for some time. No log may stay offline because of this."""
    machine = simulation.draw_machine(random)
    faults = machine.disk.faults
    chance = random.choice((0.2, 1.0))
    simulation.note_of(machine, f"out of file descriptors: one of {1 / chance:.0f} opens fails")
    faults.open = chance
    await asyncio.sleep(_seconds(random))
    faults.open = 0.0
    simulation.note_of(machine, "file descriptors are available again")


async def slow_disk(simulation: Simulation, random: Random) -> None:
    """Make syncs slow, writes short, and reads miss the page cache."""
    machine = simulation.draw_machine(random)
    disk = machine.disk
    simulation.note_of(machine, "the disk is slow")
    disk.faults.slow_sync_ns = random.choice((50, 500, 5_000)) * 1_000_000
    disk.faults.short_write = random.choice((0.0, 0.2))
    cold, disk.cold = disk.cold, random.choice((0.1, 0.9))
    await asyncio.sleep(_seconds(random))
    disk.faults.slow_sync_ns, disk.faults.short_write = 0, 0.0
    machine.disk.cold = disk.cold = cold
    simulation.note_of(machine, "the disk is no longer slow")


async def leftovers(simulation: Simulation, random: Random) -> None:
    """Make log files that the broker creates exist already, with old content, as from a restored backup."""
    machine = simulation.draw_machine(random)
    faults = machine.disk.faults
    simulation.note_of(machine, "new log files have old content")
    faults.leftover = random.choice((0.2, 1.0))
    await asyncio.sleep(_seconds(random))
    faults.leftover = 0.0
    simulation.note_of(machine, "new log files are empty again")


async def lost_files(simulation: Simulation, random: Random) -> None:
    """Stop or kill the broker, and remove or empty index files before it starts again, as operators do.

    Everything in them is in the log as well.
    """
    machine = simulation.draw_machine(random)
    with simulation.down(machine):
        await _restart_or_kill(simulation, random, machine)
        if machine.broker is None and not machine.disk.read_only:
            _lose(simulation, random, machine)


def _lose(simulation: Simulation, random: Random, machine: Machine) -> None:
    disk = machine.disk
    suffixes = random.choice((INDEX_FILES, INDEX_FILES, (TXN_INDEX,)))
    share = random.choice((0.3, 1.0))
    is_emptied = suffixes == (TXN_INDEX,) and random.random() < 0.5
    lost = [path for suffix in suffixes for path in disk.find(suffix) if random.random() < share]
    if suffixes == INDEX_FILES and random.random() < 0.2:
        lost += disk.find(f"/{TRANSACTION_INDEXES}")
    for path in lost:
        try:
            if is_emptied:
                disk.open(path).truncate(0)
            else:
                disk.unlink(path)
        except OSError:
            # Another fault of the disk prevents it.
            continue
    disk.faults.injected["lost files"] += len(lost)
    simulation.note_of(machine, f"{len(lost)} files are {'emptied' if is_emptied else 'gone'}: {' '.join(suffixes)}")


async def rot(simulation: Simulation, random: Random) -> None:
    """Kill the broker and flip a bit of unflushed data before it starts again."""
    with simulation.down():
        broker = simulation.machine.broker
        if broker is None or not simulation.serving:
            return
        recovery_points = {
            (tp.topic, tp.partition): partition.log.recovery_point
            for tp, partition in broker.services.replicas.partitions.items()
        }
        simulation.machine.kill()
        simulation.note("kill -9")
        _flip(simulation, random, recovery_points)
        await asyncio.sleep(_seconds(random))


def _flip(simulation: Simulation, random: Random, recovery_points: Mapping[TopicPartition, int]) -> None:
    """Flip a bit of a batch above the recovery point that the last process had."""
    disk = simulation.machine.disk
    found = []
    for tp, path in partition_directories(disk, DATA).items():
        for _, segment in segment_files(disk, path):
            for batch in read_batches(disk.data(segment)):
                if batch.header.base_offset >= recovery_points.get(tp, 1 << 62):
                    found.append((tp, segment, batch))
    if not found:
        return
    tp, segment, batch = random.choice(found)
    commits = dict.fromkeys(readable_commits(disk, DATA), -1)
    # Not in the leader epoch: no CRC covers it, so the change cannot be detected, in Apache Kafka neither.
    at = disk.flip_bit(
        segment,
        random.choice([*range(batch.start, batch.start + LENGTH_OVERHEAD), *range(batch.start + MAGIC_POS, batch.end)]),
    )
    simulation.note(
        f"a bit of {segment} has flipped at position {at}, in the batch at offset {batch.header.base_offset}"
    )
    if tp[0] == GROUPS_TOPIC:
        simulation.history.record("simulation", Loss("bit rot", {}, {**commits, **readable_commits(disk, DATA)}))
    else:
        simulation.history.record("simulation", Loss("bit rot", {tp: batch.header.base_offset}))


NODE: dict[str, Fault] = {"restart": restart, "kill": kill, "pause": pause, "stall": stall}
NETWORK: dict[str, Fault] = {"cut": cut, "clog": clog, "slow": slow, "reset": reset, "stall": stall}
DISK: dict[str, Fault] = {
    "disk_error": disk_error,
    "full": full,
    "leftovers": leftovers,
    "out_of_files": out_of_files,
    "read_only": read_only,
    "slow_disk": slow_disk,
}
# The faults of a disk that lose nothing acknowledged, and end by themselves.
LOSSLESS_DISK: dict[str, Fault] = {"full": full, "out_of_files": out_of_files, "slow_disk": slow_disk}
LOST_FILES: dict[str, Fault] = {"lost_files": lost_files}
POWER: dict[str, Fault] = {"power": power}
ROT: dict[str, Fault] = {"rot": rot}
CLOCK: dict[str, Fault] = {"clock": clock}
