"""Faults of a cluster whose disks fill, become read-only or lack file descriptors, and recover."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.simulation.scenarios.cluster_faults import controller_machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from kbroker.simulation.runtime.machine import Machine
    from kbroker.simulation.scenarios.simulation import Simulation

# Ranges of how long a disk accepts nothing, in seconds.
SHORTAGES_S = ((0.01, 1.0), (1.0, 4.0), (4.0, 10.0))
SPACE = (0, 100, 5_000)


@contextmanager
def _without_space(simulation: Simulation, random: Random, machine: Machine) -> Iterator[None]:
    """Let a disk be full, or the process lack file descriptors."""
    disk = machine.disk
    if random.random() < 0.8:
        simulation.note_of(machine, "the disk is full")
        disk.capacity = disk.used + random.choice(SPACE)
    else:
        simulation.note_of(machine, "out of file descriptors")
        disk.faults.open = 1.0
    try:
        yield
    finally:
        # A crash in between has replaced the disk object.
        for each in (disk, machine.disk):
            each.capacity, each.faults.open = None, 0.0
        simulation.note_of(machine, "the disk accepts data again")


async def fill(simulation: Simulation, random: Random) -> None:
    """Fill the disk of one broker, often that of the controller, for some time."""
    machine = controller_machine(simulation) if random.random() < 0.4 else None
    with _without_space(simulation, random, machine or simulation.draw_machine(random)):
        await asyncio.sleep(random.uniform(*random.choice(SHORTAGES_S)))


async def fill_several(simulation: Simulation, random: Random) -> None:
    """Fill the disks of several brokers, or of all, one after another; they get space again in another order."""

    async def fill_later(machine: Machine) -> None:
        await asyncio.sleep(random.uniform(0.0, 1.0))
        with _without_space(simulation, random, machine):
            await asyncio.sleep(random.uniform(*random.choice(SHORTAGES_S)))

    machines = random.sample(simulation.machines, random.randint(2, len(simulation.machines)))
    await asyncio.gather(*map(fill_later, machines))


async def flap(simulation: Simulation, random: Random) -> None:
    """Let the disk of one broker be full again and again, with a little space in between."""
    machine = simulation.draw_machine(random)
    for _ in range(random.randint(3, 8)):
        with _without_space(simulation, random, machine):
            await asyncio.sleep(random.uniform(0.1, 1.5))
        await asyncio.sleep(random.uniform(0.1, 3.0))


DISK_SPACE = {"fill": fill, "fill_several": fill_several, "flap": flap}
