"""Faults of a cluster: a dead controller, a broker that only clients or only the coordination service reach, a replaced
machine, the death of several brokers, disks that fill and recover, and faults of the coordination service."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import NoNode
from kbroker.metadata.registration import layout_ops
from kbroker.metadata.store import znodes
from kbroker.metadata.store.change_log import decode_change_log
from kbroker.simulation.runtime.machine import DATA
from kbroker.simulation.scenarios.faults import Fault, crash
from kbroker.storage.file_names import METADATA_SEEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from kbroker.simulation.coordination.service import SimCoordination
    from kbroker.simulation.runtime.machine import Machine
    from kbroker.simulation.scenarios.simulation import Simulation


SECONDS = ((0.001, 0.5), (0.5, 5.0), (5.0, 20.0))
OUTAGE_S = 60.0
# Longer than a session, and than the time after which replicas are rebuilt (draw_healing_configs).
ABSENCE_S = (9.0, 20.0)


def _seconds(random: Random, ranges: Sequence[tuple[float, float]] = SECONDS) -> float:
    return random.uniform(*random.choice(ranges))


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


# The fault `coordination`: an unreachable, slow, lagging or restarted coordination service, expired sessions.
#
# The fault `lost_metadata`: the service has no data any more, or that of another cluster, until the operator puts the
# data of before back. The fault `older_metadata`: the operator puts an older copy of its data back.

# Most faults are shorter than the session timeout of 6 s, some are longer.
OUTAGES_S = ((0.001, 0.5), (0.5, 5.0), (5.0, 15.0))
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
    await asyncio.sleep(_seconds(random, OUTAGES_S))
    service.heal(machine.name)
    simulation.note_of(machine, "the coordination service is reachable again")


async def _slow(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    most = random.choice((0.1, 1.0, 5.0))
    simulation.note(f"the coordination service is slow: delays of up to {most} s")
    service.slow((0.0, most))
    await asyncio.sleep(_seconds(random, OUTAGES_S))
    service.heal_all()
    simulation.note("the coordination service is no longer slow")


async def _lag(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    most = random.choice((0.5, 5.0))
    simulation.note(f"the servers of the coordination service lag by up to {most} s")
    service.lag((0.0, most))
    await asyncio.sleep(_seconds(random, OUTAGES_S))
    service.heal_all()
    simulation.note("the servers of the coordination service no longer lag")


async def _restart(simulation: Simulation, service: SimCoordination, random: Random) -> None:
    simulation.note("the coordination service has stopped")
    service.stop()
    await asyncio.sleep(_seconds(random, OUTAGES_S))
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


# The faults that replace the data of the coordination service.
METADATA: dict[str, Fault] = {"lost_metadata": lost_metadata}
OLDER_METADATA: dict[str, Fault] = {"older_metadata": older_metadata}
COORDINATION: dict[str, Fault] = {"coordination": coordination}
