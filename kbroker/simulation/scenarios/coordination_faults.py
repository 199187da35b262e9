"""The fault `coordination`: an unreachable, slow, lagging or restarted coordination service, expired sessions.

The fault `lost_metadata`: the service has no data any more, or that of another cluster, until the operator puts the
data of before back. The fault `older_metadata`: the operator puts an older copy of its data back.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kbroker.coordination.data_tree import DataTree
from kbroker.metadata.registration import layout_ops
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import decode_change_log
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.file_names import METADATA_SEEN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from kbroker.simulation.coordination.service import SimCoordination
    from kbroker.simulation.runtime.machine import Machine
    from kbroker.simulation.scenarios.simulation import Simulation

# Most faults are shorter than the session timeout of 6 s, some are longer.
SECONDS = ((0.001, 0.5), (0.5, 5.0), (5.0, 15.0))
# How long the service has other data: brokers must have time to join there, and to delete logs.
METADATA_S = (0.5, 6.0)


async def coordination(simulation: Simulation, random: Random) -> None:
    """Make the service unreachable (one way or both), slow or stale, restart it, or expire a broker's session."""
    service = simulation.coordination
    if service is not None:
        await random.choice((_cut, _cut, _slow, _lag, _restart, _expire))(simulation, service, random)


async def _cut(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    requests, responses = random.choice(((True, True), (True, False), (False, True)))
    lost = " and ".join(name for name, is_lost in (("requests", requests), ("responses", responses)) if is_lost)
    machine = simulation.draw_machine(random)
    simulation.note_of(machine, f"the coordination service is unreachable: {lost} are lost")
    service.cut(machine.name, requests=requests, responses=responses)
    await asyncio.sleep(_seconds(random))
    service.heal(machine.name)
    simulation.note_of(machine, "the coordination service is reachable again")


async def _slow(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    most = random.choice((0.1, 1.0, 5.0))
    simulation.note(f"the coordination service is slow: delays of up to {most} s")
    service.slow((0.0, most))
    await asyncio.sleep(_seconds(random))
    service.heal_all()
    simulation.note("the coordination service is no longer slow")


async def _lag(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    most = random.choice((0.5, 5.0))
    simulation.note(f"the servers of the coordination service lag by up to {most} s")
    service.lag((0.0, most))
    await asyncio.sleep(_seconds(random))
    service.heal_all()
    simulation.note("the servers of the coordination service no longer lag")


async def _restart(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    simulation.note("the coordination service has stopped")
    service.stop()
    await asyncio.sleep(_seconds(random))
    service.start()
    simulation.note("the coordination service has started")


async def _expire(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    machine = simulation.draw_machine(random)
    for number in service.sessions(machine.name):
        simulation.note_of(machine, f"coordination session {number} expires")
        service.expire(number)


async def lost_metadata(simulation: Simulation, random: Random) -> None:
    """The service loses its data, or gets that of another cluster; the operator puts the data of before back, later.

    Meanwhile an empty broker may start, or one whose meta.properties an operator has removed: it begins a new cluster,
    or joins the other one.
    """
    service = simulation.coordination
    if service is None or simulation.is_metadata_replaced:
        return
    other = DataTree()
    if random.random() < 0.4:
        other.apply(layout_ops(random), 0)
        simulation.note("the coordination service has the data of another, empty cluster")
    else:
        simulation.note("the coordination service has lost its data")
    intruder = simulation.draw_machine(random) if random.random() < 0.5 else None
    is_empty = random.random() < 0.5
    if intruder is not None and is_empty and not simulation.is_replicated():
        intruder = None
    simulation.replace_metadata(other)
    if intruder is not None:
        with simulation.down(intruder):
            if is_empty:
                simulation.note_of(intruder, "kill -9, and its disk is replaced by an empty one")
                simulation.replace_disk(intruder)
            else:
                simulation.note_of(intruder, "kill -9, and the operator removes meta.properties")
                simulation.remove_owner(intruder)
    await asyncio.sleep(random.uniform(*METADATA_S))
    simulation.put_metadata_back()


async def older_metadata(simulation: Simulation, random: Random) -> None:
    """The operator puts back an older copy of the service's data, while the brokers run, or with all of them down.

    Not a copy with other topics, configs or replicas: their records would be set aside until the operator acts.
    """
    service = simulation.coordination
    if service is None or simulation.is_metadata_replaced:
        return
    copy = service.copy()
    # Leaders change meanwhile.
    await _expire(simulation, service, random)
    await asyncio.sleep(random.uniform(0.0, 5.0))
    if simulation.is_metadata_replaced:
        return
    with ExitStack() as down:
        is_down = random.random() < 0.5
        if is_down:
            for machine in simulation.machines:
                down.enter_context(simulation.down(machine))
                await _end(simulation, machine, random)
        if _last_change(copy) < _last_seen(simulation) and _decided(copy) == _decided(service.tree):
            simulation.note("the operator has put back an older copy of the coordination service's data")
            simulation.restore_metadata(copy)
        if is_down:
            await asyncio.sleep(random.uniform(0.0, 1.0))
    # The next copy is one of a later history, or as old as this one.
    await asyncio.sleep(random.uniform(0.0, 10.0))


async def _end(simulation: Simulation, machine: Machine, random: Random) -> None:
    if machine.broker is None:
        return
    if random.random() < 0.5 or machine.services is None or machine.paused:
        simulation.note_of(machine, "kill -9")
        machine.kill()
    else:
        simulation.note_of(machine, "SIGTERM")
        await machine.stop()


def _last_change(tree: DataTree) -> int:
    return decode_change_log(tree.get(znodes.CHANGES).data).number


def _last_seen(simulation: Simulation) -> int:
    """Return the number of the last change that a broker has on its disk."""
    path = f"{DATA}/{METADATA_SEEN}"
    disks = [machine.disk for machine in simulation.machines]
    numbers: list[int] = [json.loads(disk.data(path))[1] for disk in disks if disk.exists(path)]
    return max(numbers, default=0)


def _decided(tree: DataTree) -> tuple[dict[str, bytes], dict[tuple[bytes, int], object]]:
    """Return what an administrator has decided: topics, configs, replicas, closing partitions."""
    nodes = {path: node.data for path, node in tree.nodes.items() if path.startswith((znodes.TOPICS, znodes.CONFIGS))}
    return nodes, {
        (topic_id, index): (sorted(partition.replicas), partition.is_closing, partition.forwarding)
        for path, node in tree.nodes.items()
        if path.startswith(f"{znodes.PARTITIONS}/")
        for topic_id, partitions in znodes.decode_chunk(znodes.number_of(path), node.data).items()
        for index, partition in partitions.items()
    }


def _seconds(random: Random) -> float:
    return random.uniform(*random.choice(SECONDS))


# The faults that replace the data of the coordination service.
METADATA = {"lost_metadata": lost_metadata}
OLDER_METADATA: dict[str, Callable[[Simulation, Random], Awaitable[None]]] = {"older_metadata": older_metadata}
