"""One broker's machine, simulated."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from kbroker.simulation.clock import SimClock
from kbroker.simulation.disk import SimDisk
from kbroker.simulation.loop import SimLoop
from kbroker.simulation.processes import SimProcesses
from kbroker.world import World

T = TypeVar("T")


def sim_world(seed: int, *, loop: SimLoop | None = None, name: str = "broker") -> World:
    """A machine with an empty disk. Machines on one network share a loop; `name` keeps their seeds apart."""
    loop = loop or SimLoop(seed)
    clock = SimClock(loop)

    def offload(fn: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return loop.run_in_executor(None, fn, *args)

    disk = SimDisk(clock, Random(f"{seed}/{name}/disk"))
    return World(
        loop=loop,
        clock=clock,
        disk=disk,
        random=Random(f"{seed}/{name}"),
        offload=offload,
        apart=SimProcesses(loop, disk, clock, Random(f"{seed}/{name}/processes")),
    )
