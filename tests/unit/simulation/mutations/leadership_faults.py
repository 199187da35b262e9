"""Directed faults in which a leader is replaced and leads again, while its followers have truncated their logs."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from kbroker.coordination.data_tree import DataTree
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.group_offsets import LATEST, list_offset
from kbroker.simulation.coordination.service import SESSION_MS
from kbroker.simulation.invariants.broker import BrokenInvariant
from kbroker.simulation.runtime.machine import PORT, Machine
from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import SLOW_SYNC_NS


async def leader_returns(simulation: Simulation, random: Random) -> None:
    """A follower appends records of a leader epoch, truncates them, and gets them from the same leader again."""
    await _replace_leader(simulation)


async def late_claim(simulation: Simulation, random: Random) -> None:
    """A Fetch of a former epoch arrives when the leader leads again, and the follower has truncated its log."""

    async def hold_back(scene: Scene, leader: Machine, follower: Machine) -> None:
        scene.network.cut(follower.name, leader.name)
        # The leader responds to the Fetch that it has, with further records, and the follower sends another one.
        await asyncio.sleep(0.1)

    await _replace_leader(simulation, hold_back)


async def late_response(simulation: Simulation, random: Random) -> None:
    """The response to a Fetch of a former epoch arrives when the follower has truncated its log."""

    async def hold_back(scene: Scene, leader: Machine, follower: Machine) -> None:
        scene.network.cut(leader.name, follower.name)
        end_offset = scene.end_offset(follower)
        await scene.until(lambda: scene.end_offset(leader) > end_offset + 3)

    await _replace_leader(simulation, hold_back)


async def _replace_leader(
    simulation: Simulation, hold_back: Callable[[Scene, Machine, Machine], Awaitable[None]] | None = None
) -> None:
    """Let a leader and one follower append records that the other follower lacks, which then leads for a moment.

    All are in the ISR all the time. The first follower truncates the records, the leader does not hear of it, and leads
    again. `hold_back` holds back what one of the two sends before that; it arrives afterwards.
    """
    scene = Scene.find(simulation, lambda scene: scene.leader is not scene.controller)
    if scene is None or not await scene.until_in_sync():
        return
    preferred, (leader, follower) = scene.leader, scene.followers
    with scene.producers_paused():
        await scene.until_replicated()
        scene.expire(preferred)
        await scene.until(lambda: scene.leads(leader))
        await scene.until_in_sync()
        # The preferred replica has no records of the new epoch.
        scene.cut(leader, [preferred])
    end_offset = scene.end_offset(preferred)
    await scene.until(lambda: scene.end_offset(follower) > end_offset + 3)
    if hold_back is not None:
        await hold_back(scene, leader, follower)
    # The preferred replica leaves the ISR one second after the first of these records.
    with scene.producers_paused():
        if await scene.elect_preferred():
            await scene.until(lambda: scene.end_offset(follower) <= end_offset)
            scene.expire(preferred)
            await scene.until(lambda: scene.leads(leader))
        scene.heal(leader, [follower])
        # The follower needs some time to get what it has truncated.
        scene.delay(leader, follower, (0.2, 0.2))
        await asyncio.sleep(0.5)
    scene.heal(leader, [preferred, follower])


async def successor_knows_a_lower_high_watermark(simulation: Simulation, random: Random) -> None:
    """A new leader has records that it does not know to be committed. A replica outside the ISR lacks just these."""
    scene = Scene.find(simulation, lambda scene: scene.controller not in (scene.leader, *scene.followers))
    if scene is None or not await scene.until_in_sync():
        return
    preferred, (leader, follower) = scene.leader, scene.followers
    with scene.producers_paused():
        await scene.until_replicated()
        scene.expire(preferred)
        await scene.until(lambda: scene.leads(leader))
        await scene.until_in_sync()
        scene.cut(leader, [preferred, follower])
        scene.expire(follower)
        await scene.until(lambda: not scene.is_in_isr(follower))
    committed = scene.partition(leader)
    assert committed is not None
    end_offset = committed.high_watermark
    await scene.until(lambda: scene.end_offset(leader) > end_offset)
    with scene.producers_paused():
        scene.heal(leader, [preferred])
        await scene.until(lambda: committed.high_watermark > end_offset)
        # The response to its last Fetch would have the high watermark.
        scene.cut(leader, [preferred])
        # Clients receive the records.
        await asyncio.sleep(0.1)
        scene.delay(preferred, follower, (0.2, 0.2))
        if await scene.elect_preferred():
            await scene.until(lambda: scene.is_in_isr(follower), seconds=1.0)
            await asyncio.sleep(0.1)
    scene.heal(leader, [preferred, follower])
    scene.heal(preferred, [follower])


async def leader_moves_unheard(simulation: Simulation, random: Random) -> None:
    """The transaction coordinator does not learn of the new leader of a partition of the transaction."""
    coordinator = Scene(simulation, ("__transaction_state", 0)).leader
    scene = Scene.find(simulation, lambda scene: coordinator not in (scene.leader, scene.followers[0]))
    if scene is not None and await scene.until_in_sync(min_end_offset=0):
        leader, successor = scene.leader, scene.followers[0]
        scene.service.cut(coordinator.name)
        if scene.controller is coordinator:
            scene.delete_controller()
        scene.expire(leader)
        await scene.until(lambda: scene.leads(successor))
        # It sends the markers of the next transactions to the former leader.
        await asyncio.sleep(1.0)
        scene.service.heal(coordinator.name)


async def synced_records_are_truncated(simulation: Simulation, random: Random) -> None:
    """A broker syncs records that it has to truncate, appends others, and loses power before these are synced."""
    scene = Scene.find(simulation, lambda scene: scene.leader is not scene.controller)
    if scene is None or not await scene.until_in_sync():
        return
    machine, followers = scene.leader, scene.followers
    partition = scene.partition(machine)
    assert partition is not None
    log, segments = partition.log, len(partition.log.segments)
    scene.cut(machine, followers)
    await scene.until(lambda: len(log.segments) >= segments + 3, seconds=0.5)
    with scene.producers_paused():
        await scene.sync(machine)
        former_end = scene.end_offset(machine)
        scene.expire(machine)
        await scene.until(lambda: scene.leads(followers[0]))
        scene.heal(machine, followers)
        successor = followers[0]
        await scene.until(lambda: scene.end_offset(machine) == scene.end_offset(successor) and not log.is_truncating)
    machine.disk.faults.slow_sync_ns = SLOW_SYNC_NS
    await scene.until(lambda: scene.end_offset(machine) > former_end - 2)
    machine.disk.faults.slow_sync_ns = 0
    await scene.lose_power(machine)
    await asyncio.sleep(0.1)


async def only_clients_reach_the_leader(simulation: Simulation, random: Random) -> None:
    """A leader is cut off from all but clients, and replaced. An admin client asks both leaders for the latest offset.

    Raises BrokenInvariant if the former leader returns a lower one, which the client takes for lost records.
    """
    scene = Scene.find(simulation, lambda scene: scene.leader is not scene.controller)
    if scene is None or not await scene.until_in_sync():
        return
    former, followers = scene.leader, scene.followers
    with scene.isolated(former):
        # Its session ends by itself, since the leader has to notice in time that it may be replaced.
        if not await scene.until(lambda: any(scene.leads(machine) for machine in followers), 2 * SESSION_MS / 1000):
            return
        end_offset = scene.end_offset(former)
        await scene.until(lambda: scene.high_watermark(scene.leader) > end_offset, SESSION_MS / 1000)
        latest = await _latest(scene, scene.leader)
        former_latest = await _latest(scene, former)
    if latest is not None and former_latest is not None and former_latest < latest:
        raise BrokenInvariant(f"the latest offset of {scene.tp} is {former_latest} at {former.name}, after {latest}")


async def _latest(scene: Scene, machine: Machine) -> int | None:
    """Return the latest offset of the partition according to a broker, as its clients see it; None if it refuses."""
    simulation = scene.simulation
    host = simulation.client(f"admin{len(simulation.clients)}")

    async def look_up() -> int | None:
        cluster = Cluster(host, [(machine.name, PORT)], simulation.random_for(host.host), host.host)
        try:
            return (await list_offset(cluster, scene.tp, LATEST))[0]
        except OSError:
            return None
        finally:
            cluster.close()

    return await host.run(look_up())


async def restored_without_the_leader(simulation: Simulation, random: Random) -> None:
    """Put a copy of before the last election back, and start the leader of that time before the others.

    It has left the ISR since, and lacks records.
    """
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    copy = scene.service.copy()
    former, (leader, other) = scene.leader, scene.followers
    with simulation.down(leader), simulation.down(other):
        with simulation.down(former):
            scene.kill(former)
            await scene.until(lambda: scene.leads(leader))
            end_offset = scene.end_offset(leader)
            await scene.until(lambda: scene.high_watermark(leader) > end_offset + 10)
            for machine in (leader, other):
                simulation.note(f"{machine.name}: kill -9")
                machine.kill()
            simulation.note("the operator has put back an older copy of the coordination service's data")
            simulation.restore_metadata(copy)
        await scene.until(lambda: former.services is not None)
        await asyncio.sleep(1.0)
    await scene.until_in_sync()


async def restored_with_an_unaware_broker_first(simulation: Simulation, random: Random) -> None:
    """Put a copy of before the last election back. A broker that was down since then starts some seconds earlier.

    It was stopped in an orderly way, though nobody heard of it, so it may lead by the copy.
    """
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    copy = scene.service.copy()
    former, (leader, other) = scene.leader, scene.followers
    with simulation.down(leader), simulation.down(other):
        with simulation.down(former):
            await _stop_unheard_and_restore(scene, former, [leader, other], copy)
            epoch = scene.ephemeral_epoch(former)
        await scene.until(lambda: scene.ephemeral_epoch(former) > epoch, seconds=10.0)
        await asyncio.sleep(5.0)
    await scene.until_in_sync()


async def restored_while_sessions_expire(simulation: Simulation, random: Random) -> None:
    """Put a copy of before the last election back, and expire the sessions of all brokers but one as they start.

    They wait for the end of the sessions that the copy has. The other one was down since the copy.
    """
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    copy = scene.service.copy()
    former, aware = scene.leader, scene.followers
    with simulation.down(former), simulation.down(aware[0]), simulation.down(aware[1]):
        await _stop_unheard_and_restore(scene, former, aware, copy)
    await scene.until(lambda: all(scene.service.sessions(machine.name) for machine in aware))
    await asyncio.sleep(1.0)
    for machine in aware:
        scene.expire(machine)
    await asyncio.sleep(SESSION_MS / 1000)
    await scene.until_in_sync()


async def _stop_unheard_and_restore(scene: Scene, former: Machine, others: list[Machine], copy: DataTree) -> None:
    """Stop the leader in an orderly way, though nobody hears of it. Others lead, and are killed. Put the copy back."""
    simulation, leader = scene.simulation, others[0]
    with scene.isolated(former):
        simulation.note(f"{former.name}: SIGTERM")
        await former.stop()
        scene.expire(former)
    await scene.until(lambda: scene.leads(leader))
    end_offset = scene.end_offset(leader)
    await scene.until(lambda: scene.high_watermark(leader) > end_offset + 10)
    for machine in others:
        simulation.note(f"{machine.name}: kill -9")
        machine.kill()
    simulation.note("the operator has put back an older copy of the coordination service's data")
    simulation.restore_metadata(copy)


async def restored_with_a_stale_follower_first(simulation: Simulation, random: Random) -> None:
    """Put a copy of before the last ISR change back, and start a follower that has left the ISR before the others."""
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    copy = scene.service.copy()
    leader, (second, stale) = scene.leader, scene.followers
    scene.cut(leader, [stale])
    await scene.until(lambda: not scene.is_in_isr(stale))
    end_offset = scene.end_offset(leader)
    await scene.until(lambda: scene.high_watermark(leader) > end_offset + 10)
    with simulation.down(leader), simulation.down(second):
        for machine in (leader, second, stale):
            simulation.note(f"{machine.name}: kill -9")
            machine.kill()
        scene.heal(leader, [stale])
        simulation.note("the operator has put back an older copy of the coordination service's data")
        simulation.restore_metadata(copy)
        await scene.until(lambda: scene.ephemeral_epoch(stale) > scene.broker_epoch(stale) >= 0, seconds=10.0)
        await asyncio.sleep(3.0)
    await scene.until_in_sync()
