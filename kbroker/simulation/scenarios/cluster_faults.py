"""Faults of a cluster: a dead controller, a broker that only clients or only the coordination service reach, a replaced
machine, the death of several brokers, a long outage of the coordination service, disks that fill and recover."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kbroker.coordination.interface import NoNode
from kbroker.metadata.store import znodes
from kbroker.simulation.scenarios.faults import crash

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from kbroker.simulation.runtime.machine import Machine
    from kbroker.simulation.scenarios.simulation import Simulation

SECONDS = ((0.001, 0.5), (0.5, 5.0), (5.0, 20.0))
OUTAGE_S = 60.0
# Longer than a session, and than the time after which replicas are rebuilt (draw_healing_configs).
ABSENCE_S = (9.0, 20.0)


def _seconds(random: Random) -> float:
    return random.uniform(*random.choice(SECONDS))


async def controller(simulation: Simulation, random: Random) -> None:
    """Kill the broker that is the controller."""
    machine = controller_machine(simulation)
    if machine is not None:
        await crash(simulation, random, machine, power=False)


def controller_machine(simulation: Simulation) -> Machine | None:
    """Return the machine of the controller; None if there is none."""
    service = simulation.coordination
    assert service is not None
    try:
        broker = int(znodes.decode(znodes.CONTROLLER, service.tree.get(znodes.CONTROLLER).data)["broker"])
    except NoNode:
        return None
    return simulation.machines[broker - 1]


async def isolate(simulation: Simulation, random: Random) -> None:
    """Cut a broker off from the other brokers, and perhaps from the coordination service; clients still reach it."""
    machine, service = simulation.draw_machine(random), simulation.coordination
    assert service is not None
    without_service = random.random() < 0.5
    one_way = random.choice((None, None, "from", "to"))
    others = [other.name for other in simulation.machines if other is not machine]
    pairs = [(other, machine.name) for other in others if one_way != "from"]
    pairs += [(machine.name, other) for other in others if one_way != "to"]
    simulation.note(
        f"cut between brokers: {', '.join(f'{source} to {target}' for source, target in pairs)}"
        + (f"; {machine.name} has no coordination service" if without_service else "")
    )
    for source, target in pairs:
        simulation.network.faults.cut(source, target)
    if without_service:
        service.cut(machine.name)
    await asyncio.sleep(_seconds(random))
    for source, target in pairs:
        simulation.network.faults.restore(source, target)
    if without_service:
        service.heal(machine.name)
    simulation.note(f"{machine.name} is no longer cut off")


async def replace(simulation: Simulation, random: Random) -> None:
    """Replace a machine's disk by an empty one, if all other replicas are in sync and no other broker is down."""
    if not simulation.is_replicated():
        return
    machine = simulation.draw_machine(random)
    with simulation.down(machine):
        simulation.note(f"{machine.name}: kill -9, and its disk is replaced by an empty one")
        simulation.replace_disk(machine)
        await asyncio.sleep(_seconds(random))


async def kill_all(simulation: Simulation, random: Random) -> None:
    """Kill all brokers at about the same time."""
    await asyncio.gather(
        *(crash(simulation, random, machine, power=False) for machine in simulation.machines if machine.broker)
    )


async def power_of_several(simulation: Simulation, random: Random) -> None:
    """Power off two machines, or all, at about the same time."""
    machines = [machine for machine in simulation.machines if machine.broker]
    if random.random() < 0.5:
        machines = random.sample(machines, min(2, len(machines)))
    await asyncio.gather(*(crash(simulation, random, machine, power=True) for machine in machines))


async def outage(simulation: Simulation, random: Random) -> None:
    """Stop all servers of the coordination service for a minute, or until the faults end."""
    service = simulation.coordination
    assert service is not None
    simulation.note("all servers of the coordination service have stopped")
    service.stop()
    await asyncio.sleep(OUTAGE_S)
    service.start()
    simulation.note("the coordination service has started")


async def absence(simulation: Simulation, random: Random) -> None:
    """Kill a broker, and keep it down so long that self-healing may rebuild its replicas."""
    machine = simulation.draw_machine(random)
    with simulation.down(machine):
        if machine.broker is not None:
            simulation.note_of(machine, "kill -9, and it stays away")
            machine.kill()
            await asyncio.sleep(random.uniform(*ABSENCE_S))


CLUSTER = {"controller": controller, "isolate": isolate, "replace": replace, "kill_all": kill_all}
OUTAGE = {"outage": outage}
POWER_OF_SEVERAL = {"power_of_several": power_of_several}


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
