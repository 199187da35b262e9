"""A machine on which a broker is started, stopped, killed, paused, or loses its power.

The disk, the clock and the host's name outlive the process; the loop, its tasks and all in memory do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.runtime.environment import Environment
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.runtime.clock import SimClock
from kbroker.simulation.runtime.host import HostLoop
from kbroker.simulation.runtime.processes import SimProcesses

if TYPE_CHECKING:
    from kbroker.api.context import Services
    from kbroker.metadata.store.coordination import Coordination
    from kbroker.simulation.coordination.service import SimCoordination
    from kbroker.simulation.runtime.loop import SimLoop

PORT = 9092
DATA = "/data"


class Machine:
    """`coordination`: the service that its broker uses; without one the broker keeps its own, on the machine's disk.

    `broker` is the one that runs, None while none does. `on_end` is called when a process ends, while the disk
    still has everything, with whether the power is lost.
    A broker that gives up by itself ends as its process would.
    """

    def __init__(
        self,
        universe: SimLoop,
        seed: object,
        name: str,
        configs: Mapping[str, str],
        coordination: SimCoordination | None = None,
    ) -> None:
        self.universe = universe
        self.name = name
        self.configs = {"listeners": f"PLAINTEXT://{name}:{PORT}", "log.dirs": DATA, **configs}
        self.clock = SimClock(universe)
        self.broker: Broker | None = None
        self.starts = 0
        self.on_end: Callable[[bool], None] = lambda power: None
        self._seed = seed
        self._coordination = coordination
        self.disk = SimDisk(self.clock, Random(f"{seed}/{name}/disk"))
        self.disk.trace = self._trace_disk
        self.loop = self._new_loop()
        self._loops: list[HostLoop] = [self.loop]
        self._session: Coordination | None = None
        self._ended: asyncio.Future[None] = universe.create_future()

    @property
    def services(self) -> Services | None:
        """Of the broker that runs; None before it is assembled."""
        return None if self.broker is None else getattr(self.broker, "services", None)

    @property
    def paused(self) -> bool:
        return self.loop.waiting is not None

    async def start(self) -> Broker:
        """Start a broker and wait until it serves. Raises what keeps it from starting, or HostDied."""
        assert self.broker is None
        self.starts += 1
        self._ended = self.universe.create_future()
        seed = f"{self._seed}/{self.name}/{self.starts}"
        loop = self.loop = self._new_loop()
        self._loops.append(loop)
        disk = self.disk
        environment = Environment(
            loop=loop,
            clock=self.clock,
            disk=disk,
            random=Random(seed),
            offload=loop.offload,
            apart=SimProcesses(loop, disk, self.clock, Random(f"{seed}/processes")),
        )
        self.universe.trace.note("start", self.name)
        if self._coordination is not None:
            self._session = self._coordination.session(loop, self.name)
        broker = self.broker = Broker(environment, BrokerConfig.load(self.configs), self._session)
        try:
            await loop.run(broker.start())
        except BaseException:
            if self.loop is loop:
                self._end(power=False)
            raise
        loop.create_task(self._end_with(broker))
        return broker

    async def _end_with(self, broker: Broker) -> None:
        """What the main program does: it waits until the broker has to stop."""
        await broker.stopped
        await broker.stop()
        self._end(power=False)

    async def stop(self) -> None:
        """SIGTERM, and wait until the process has ended."""
        broker = self.broker
        assert broker is not None
        if not broker.stopped.done():
            broker.stopped.set_result(None)
        # Whoever waits may be told to stop waiting.
        await asyncio.shield(self._ended)

    def kill(self) -> None:
        """kill -9: the page cache stays, and the kernel resets the connections."""
        self._end(power=False)

    def power_off(self) -> None:
        """What was not synced may be lost, and nobody is told."""
        self._end(power=True)

    def die_after(self, changes: int, *, power: bool) -> None:
        """Let the process die, or the power fail, in the middle of the disk's n-th change from now."""
        self.disk.die_after(changes, lambda: self._end(power=power))

    def disarm(self) -> None:
        """What `die_after` has planned does not come to pass."""
        self.disk.disarm()

    def pause(self) -> None:
        """SIGSTOP; the kernel still takes what arrives."""
        self.universe.trace.note("pause", self.name)
        self.loop.pause()

    def resume(self) -> None:
        self.universe.trace.note("resume", self.name)
        self.loop.resume()

    def forget(self) -> None:
        """At the end of a run: let go of everything that died on the way."""
        for loop in self._loops:
            loop.forget()

    def _end(self, *, power: bool) -> None:
        if self.broker is None:
            return
        self.universe.trace.note("end", self.name, power)
        self.on_end(power)
        self.broker = None
        self._session = None
        self.loop.die()
        self._ended.set_result(None)
        self.universe.network.drop_host(self.name, silent=power)
        self.disk = self.disk.after_crash(power=power)
        self.disk.trace = self._trace_disk

    def _new_loop(self) -> HostLoop:
        random = Random(f"{self._seed}/{self.name}/{self.starts}/threads")
        return HostLoop(self.universe, self.name, random, lambda: self.disk.take_busy_ns())

    def _trace_disk(self, *facts: object) -> None:
        self.universe.trace.note(self.name, *facts)
