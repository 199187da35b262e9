"""Shapes of plans: which faults, how often, how long, who takes part. All else is the seed's."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from kbroker.simulation.faults import CLOCK, DISK, NETWORK, NODE, POWER, ROT, Fault
from kbroker.simulation.plan import Plan
from kbroker.simulation.stage import Stage

Shape = Callable[[Plan], None]

FAULTS: dict[str, Fault] = {**NODE, **NETWORK, **DISK, **POWER, **ROT, **CLOCK}


def short(seconds: float = 4.0, **values: Any) -> Shape:
    """As planned, but not longer than this, and with some values of the plan as they are given here."""

    def shape(plan: Plan) -> None:
        plan.seconds = min(plan.seconds, seconds)
        plan.pause_s = min(plan.pause_s, 1.0)
        for name, value in values.items():
            setattr(plan, name, value)

    return shape


def only(*faults: str | Fault, seconds: float = 4.0, pause_s: float = 0.3, **values: Any) -> Shape:
    """These faults and no others, one at a time, `pause_s` seconds apart."""
    chosen = {one if isinstance(one, str) else one.__name__: one for one in faults}

    def shape(plan: Plan) -> None:
        plan.faults = {name: FAULTS[one] if isinstance(one, str) else one for name, one in chosen.items()}
        plan.troubles, plan.pause_s, plan.seconds = int(bool(faults)), pause_s, seconds
        for name, value in values.items():
            setattr(plan, name, value)

    return shape


def topics(shape: Shape, **configs: str) -> Shape:
    """With these configs of topics besides, an underscore for each dot."""

    def shaped(plan: Plan) -> None:
        shape(plan)
        for topic in plan.topics.values():
            topic.configs.update({name.replace("_", "."): value for name, value in configs.items()})

    return shaped


def broker(shape: Shape, **configs: str) -> Shape:
    """With these configs of the broker besides."""

    def shaped(plan: Plan) -> None:
        shape(plan)
        plan.broker.update({name.replace("_", "."): value for name, value in configs.items()})

    return shaped


async def syncs_fail(stage: Stage, random: Random) -> None:
    """Every third sync fails for a while."""
    stage.machine.disk.faults.sync = 0.3
    await asyncio.sleep(1.0)
    stage.machine.disk.faults.sync = 0.0


async def member_out_of_reach(stage: Stage, random: Random) -> None:
    """A member of the group hears nothing and is not heard until its session is over."""
    member = random.choice([client.host for client in stage.clients if client.host.startswith("member")])
    network = stage.network.faults
    stage.note(f"{member} is out of reach")
    for pair in ((member, stage.machine.name), (stage.machine.name, member)):
        network.cut(*pair)
    await asyncio.sleep(random.uniform(8.0, 14.0))
    for pair in ((member, stage.machine.name), (stage.machine.name, member)):
        network.mend(*pair)
    stage.note(f"{member} is back")
