"""Directed faults of a cluster: each is the shortest way to a state in which some mistakes lose records."""

import asyncio
from random import Random

from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.scene import Scene


async def follower_loses_its_tail(simulation: Simulation, random: Random) -> None:
    """A follower loses power with records that it has claimed, and fetches them again slowly."""
    scene = Scene(simulation)
    if await scene.until_in_sync():
        leader, follower = scene.leader, random.choice(scene.followers)
        # Otherwise the high watermark would pass the former claim meanwhile.
        with scene.producers_paused():
            await asyncio.sleep(0.1)
            scene.delay(leader, follower, (0.1, 0.2))
            scene.kill(follower, power=True)
            await scene.until(lambda: not scene.is_in_isr(follower))
            await scene.until(lambda: scene.is_in_isr(follower))
            await asyncio.sleep(0.1)
            scene.heal(leader, [follower])


async def bounce_between_two_looks(simulation: Simulation, random: Random) -> None:
    """A follower loses power and registers again before the controller sees that it was gone."""
    scene = Scene(simulation)
    controller = scene.controller
    if controller is None or not await scene.until_in_sync():
        return
    leader, follower = scene.leader, next(machine for machine in scene.followers if machine is not controller)
    with scene.producers_paused():
        await scene.until_replicated()
        scene.cut(leader, [follower])
        scene.service.cut(controller.name)
        epoch = scene.broker_epoch(follower)
        scene.kill(follower, power=True)
        await scene.until(lambda: scene.ephemeral_epoch(follower) > epoch)
        # The controller's server must have the registration, too.
        await asyncio.sleep(0.1)
        scene.service.heal(controller.name)
        await scene.until(lambda: scene.broker_epoch(follower) > epoch)
        await asyncio.sleep(0.1)
    scene.heal(leader, [follower])


async def leader_changes_unheard(simulation: Simulation, random: Random) -> None:
    """A follower learns of a new leader that it cannot fetch from."""
    scene = Scene(simulation)
    if await scene.until_in_sync():
        leader, (successor, other) = scene.leader, scene.followers
        scene.delay(leader, other, (0.02, 0.02))
        await asyncio.sleep(0.3)
        scene.cut(successor, [other])
        scene.expire(leader)
        await scene.until(lambda: scene.leads(successor))
        await asyncio.sleep(0.2)
        scene.heal(successor, [other])
        scene.heal(leader, [other])


async def leader_without_followers(simulation: Simulation, random: Random) -> None:
    """The leader reaches no follower until the ISR has shrunk below the minimum, and appends meanwhile."""
    # The controller must know of the change.
    scene = Scene.find(simulation, lambda scene: scene.leader is scene.controller)
    if scene is not None and await scene.until_in_sync():
        leader, followers = scene.leader, scene.followers
        scene.cut(leader, followers)
        await scene.until(lambda: len(scene.stored.isr) == 1)
        await asyncio.sleep(0.2)
        scene.heal(leader, followers)


async def diverging_leader(simulation: Simulation, random: Random) -> None:
    """The leader appends without its followers. Then another one is elected, and it has to truncate its log."""
    scene = Scene(simulation)
    if await scene.until_in_sync():
        leader, followers = scene.leader, scene.followers
        end_offset = scene.end_offset(leader)
        scene.cut(leader, followers)
        await scene.until(lambda: scene.end_offset(leader) > end_offset + 3)
        scene.expire(leader)
        await scene.until(lambda: scene.leads(followers[0]))
        scene.heal(leader, followers)
        await scene.until_in_sync()


async def fenced_follower(simulation: Simulation, random: Random) -> None:
    """A follower's session expires while it cannot reach the coordination service, but still fetches."""
    scene = Scene(simulation)
    if await scene.until_in_sync():
        follower = random.choice(scene.followers)
        scene.service.cut(follower.name)
        scene.expire(follower)
        await asyncio.sleep(0.5)
        scene.service.heal(follower.name)


async def unknown_isr_change(simulation: Simulation, random: Random) -> None:
    """The leader does not learn that a follower was added to the ISR, which then fetches no more.

    It is the controller: its change arrives at the coordination service, and the response does not come back.
    """
    scene = Scene.find(simulation, lambda scene: scene.leader is scene.controller)
    if scene is not None and await scene.until_in_sync():
        leader, follower = scene.leader, scene.followers[-1]
        scene.expire(follower)
        await scene.until(lambda: not scene.is_in_isr(follower))
        await scene.until_isr_change(leader)
        scene.service.cut(leader.name, requests=False, responses=True)
        await scene.until(lambda: scene.is_in_isr(follower), seconds=0.5)
        scene.cut(leader, [follower])
        await asyncio.sleep(0.3)
        scene.service.heal(leader.name)
        scene.heal(leader, [follower])


async def bounce_while_joining(simulation: Simulation, random: Random) -> None:
    """A follower loses power while the request to add it to the ISR is on its way to the controller."""
    scene = Scene.find(simulation, lambda scene: scene.leader is not scene.controller)
    if scene is None or not await scene.until_in_sync():
        return
    leader, controller = scene.leader, scene.controller
    follower = next(machine for machine in scene.followers if machine is not controller)
    assert controller is not None
    with scene.producers_paused():
        await scene.until_replicated()
        scene.expire(follower)
        await scene.until(lambda: not scene.is_in_isr(follower))
        await scene.until_isr_change(leader)
        scene.network.cut(leader.name, controller.name)
        scene.cut(leader, [follower])
        await scene.lose_power(follower)
        scene.network.restore(leader.name, controller.name)
        await scene.until(lambda: scene.is_in_isr(follower), seconds=0.6)
        await asyncio.sleep(0.1)
        scene.heal(leader, [follower])


async def late_isr_change(simulation: Simulation, random: Random) -> None:
    """A request of the leader for an ISR reaches the controller after another member has lost power, and is back."""
    scene = Scene.find(simulation, lambda scene: scene.controller not in (scene.leader, *scene.followers))
    if scene is None or not await scene.until_in_sync():
        return
    former, (leader, other), controller = scene.leader, scene.followers, scene.controller
    assert controller is not None
    with scene.producers_paused():
        await scene.until_replicated()
        # The new leader has no claim of this replica, so it does not know its broker epoch.
        scene.cut(leader, [other])
        scene.kill(former)
        await scene.until(lambda: scene.leads(leader))
        await scene.until_isr_change(leader)
        scene.network.cut(leader.name, controller.name)
        # The request is built, and sent, within 50 ms.
        await asyncio.sleep(0.1)
        await scene.lose_power(other)
        scene.network.restore(leader.name, controller.name)
        await scene.until(lambda: scene.is_in_isr(other), seconds=0.6)
        await asyncio.sleep(0.1)
        scene.heal(leader, [other])


async def eligible_replica_loses_its_tail(simulation: Simulation, random: Random) -> None:
    """A replica that is eligible while fewer than the minimum are in sync loses power."""
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    leader, (stopped, eligible) = scene.leader, scene.followers
    with simulation.down(stopped), scene.producers_paused():
        await scene.until_replicated()
        scene.kill(stopped)
        await scene.until(lambda: not scene.is_in_isr(stopped))
        scene.cut(leader, [eligible])
        await scene.lose_power(eligible)
        await asyncio.sleep(0.1)
    scene.heal(leader, [eligible])


async def empty_disk_returns(simulation: Simulation, random: Random) -> None:
    """The last in-sync replica returns with an empty disk, after the others have returned with all records."""
    scene = Scene(simulation)
    if not await scene.until_in_sync():
        return
    leader, followers = scene.leader, scene.followers
    with scene.producers_paused():
        await scene.until_replicated()
        scene.cut(leader, followers)
        epochs = [scene.broker_epoch(follower) for follower in followers]
        for follower in followers:
            scene.kill(follower)
        await scene.until(
            lambda: all(scene.broker_epoch(each) > epoch for each, epoch in zip(followers, epochs, strict=True))
        )
        epoch = scene.broker_epoch(leader)
        simulation.note(f"{leader.name}: its disk is replaced by an empty one")
        simulation.replace_disk(leader)
        scene.expire(leader)
        await scene.until(lambda: scene.broker_epoch(leader) > epoch)
        await asyncio.sleep(0.1)
    scene.heal(leader, followers)


async def two_controllers(simulation: Simulation, random: Random) -> None:
    """The controller receives nothing from the coordination service, and does not learn of its successor.

    It is a leader, whose ISR the successor changes. Then it changes the ISR itself.
    """
    scene = Scene.find(simulation, lambda scene: scene.leader is scene.controller)
    if scene is not None and await scene.until_in_sync():
        former, followers = scene.leader, scene.followers
        scene.service.cut(former.name, requests=False, responses=True)
        scene.delete_controller()
        await scene.until(lambda: scene.controller not in (None, former))
        stopped, slow = sorted(followers, key=lambda machine: machine is scene.controller)
        with simulation.down(stopped):
            scene.kill(stopped)
            scene.cut(former, [slow])
            await asyncio.sleep(2.0)
        scene.heal(former, [slow])
        scene.service.heal(former.name)


async def lost_watches(simulation: Simulation, random: Random) -> None:
    """The coordination service restarts, so that all watches are lost. Later the ISR changes."""
    scene = Scene(simulation)
    if await scene.until_in_sync():
        scene.service.stop()
        await asyncio.sleep(0.1)
        scene.service.start()
        await asyncio.sleep(0.5)
        scene.expire(random.choice(scene.followers))
        await asyncio.sleep(0.5)


async def leadership_flaps(simulation: Simulation, random: Random) -> None:
    """A follower that lags is elected, so that the others truncate their logs. Then the first leader leads again.

    From then on it does not hear of the third replica, which has less than it has claimed in the first epoch.
    """
    scene = Scene(simulation)
    if await scene.until_in_sync():
        leader, (lagging, other) = scene.leader, scene.followers
        scene.cut(leader, [lagging])
        end_offset = scene.end_offset(lagging)
        await scene.until(lambda: scene.end_offset(other) > end_offset + 3)
        with scene.producers_paused():
            await asyncio.sleep(0.05)
            scene.expire(leader)
            await scene.until(lambda: scene.leads(lagging))
            scene.heal(leader, [lagging])
            await scene.until(lambda: scene.is_in_isr(leader, lagging, other))
            await asyncio.sleep(0.1)
            scene.cut(leader, [other])
            scene.expire(lagging)
            await scene.until(lambda: not scene.leads(lagging) and scene.stored.leader > 0)
        await asyncio.sleep(0.3)
        scene.network.heal_all()


async def follower_unheard(simulation: Simulation, random: Random) -> None:
    """A follower in the ISR does not reach the leader for a short time."""
    scene = Scene(simulation)
    if await scene.until_in_sync():
        leader, follower = scene.leader, random.choice(scene.followers)
        scene.cut(leader, [follower])
        await asyncio.sleep(0.5)
        scene.heal(leader, [follower])


async def coordinator_changes_unheard(simulation: Simulation, random: Random) -> None:
    """The next coordinator of groups cannot commit what it has loaded: another in-sync replica does not reach it."""
    scene = Scene(simulation, ("__consumer_offsets", 0))
    if await scene.until_in_sync():
        leader, (successor, other) = scene.leader, scene.followers
        partition = scene.partition(successor)
        assert partition is not None
        # It does not know that the last record is committed.
        await scene.until(lambda: partition.high_watermark < partition.log.log_end_offset)
        scene.cut(successor, [other])
        scene.cut(leader, [successor])
        scene.expire(leader)
        await scene.until(lambda: scene.leads(successor))
        await asyncio.sleep(0.2)
        scene.heal(successor, [other, leader])


async def coordinator_returns(simulation: Simulation, random: Random) -> None:
    """Another broker is the coordinator of groups for some time."""
    scene = Scene(simulation, ("__consumer_offsets", 0))
    if await scene.until_in_sync(min_end_offset=3):
        leader, (successor, _) = scene.leader, scene.followers
        scene.expire(leader)
        await scene.until(lambda: scene.leads(successor))
        await asyncio.sleep(0.3)
        await scene.until_in_sync(min_end_offset=3)
        scene.expire(successor)
        await scene.until(lambda: scene.leads(leader))
        await asyncio.sleep(0.3)
