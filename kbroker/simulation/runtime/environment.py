"""The environment of a broker on a simulated machine."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from kbroker.runtime.environment import Environment
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.network.transport import direct_socket
from kbroker.simulation.runtime.clock import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.simulation.runtime.processes import SimProcesses

T = TypeVar("T")


def simulated_environment(seed: int, *, loop: SimLoop | None = None, name: str = "broker") -> Environment:
    """Return the environment of a machine with an empty disk.

    Machines on one network share a loop; `name` makes their random numbers independent.
    """
    loop = loop or SimLoop(seed)
    clock = SimClock(loop)

    def offload(fn: Callable[..., T], /, *args: object) -> Awaitable[T]:
        return loop.run_in_executor(None, fn, *args)

    disk = SimDisk(clock, Random(f"{seed}/{name}/disk"))
    return Environment(
        loop=loop,
        clock=clock,
        disk=disk,
        random=Random(f"{seed}/{name}"),
        offload=offload,
        process_runner=SimProcesses(loop, disk, clock, Random(f"{seed}/{name}/processes")),
        direct_socket=direct_socket,
    )
