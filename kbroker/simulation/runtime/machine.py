"""A simulated machine on which a broker is started, stopped, paused, killed, or loses power.

The disk, the clock and the host name survive the process; its loop, tasks and memory do not.
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
from kbroker.simulation.network.transport import direct_socket
from kbroker.simulation.runtime.environment import SimClock, SimProcesses
from kbroker.simulation.runtime.history_service import SimArchives
from kbroker.simulation.runtime.host_loop import HostLoop

if TYPE_CHECKING:
    from kbroker.api.context import Services
    from kbroker.coordination.interface import Coordination
    from kbroker.simulation.coordination.service import SimCoordination
    from kbroker.simulation.runtime.loop import SimLoop

PORT = 9092
DATA = "/data"


class Machine:
    """A machine.

    With `coordination` its broker uses that service; without, the broker keeps the metadata on the machine's disk.
    `broker` is the running broker, or None. `on_process_end` is called when a process ends, while the disk is still as
    the process left it; its argument says whether power is lost. A broker that fails by itself ends its process.
    `usual_skew_ms`: how much the wall clock is off while no fault changes it. `archives`: those that its history
    process reads.
    """

    def __init__(
        self,
        sim_loop: SimLoop,
        seed: object,
        name: str,
        configs: Mapping[str, str],
        coordination: SimCoordination | None = None,
    ) -> None:
        self.sim_loop = sim_loop
        self.name = name
        self.configs = {"listeners": f"PLAINTEXT://{name}:{PORT}", "log.dirs": DATA, **configs}
        self.clock = SimClock(sim_loop)
        self.usual_skew_ms = 0
        self.broker: Broker | None = None
        self.starts = 0
        self.archives = SimArchives()
        self.on_process_end: Callable[[bool], None] = lambda power: None
        self._seed = seed
        self._coordination = coordination
        self._disks = 0
        self.disk = SimDisk(self.clock, Random(f"{seed}/{name}/disk"))
        self.disk.trace = self._trace_disk
        self.loop = self._new_loop()
        self._loops: list[HostLoop] = [self.loop]
        self._session: Coordination | None = None
        self._ended: asyncio.Future[None] = sim_loop.create_future()

    @property
    def services(self) -> Services | None:
        """The services of the running broker; None before they are created."""
        return None if self.broker is None else getattr(self.broker, "services", None)

    @property
    def is_connected(self) -> bool:
        """Whether the process has a session with the coordination service that is connected, as far as it knows."""
        return self._session is not None and self._session.is_connected

    @property
    def paused(self) -> bool:
        return self.loop.paused

    async def start(self) -> Broker:
        """Start a broker and wait until it serves. Raises the error that keeps it from starting, or HostCrashed."""
        assert self.broker is None
        self.starts += 1
        self._ended = self.sim_loop.create_future()
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
            process_runner=SimProcesses(loop, disk, self.clock, Random(f"{seed}/processes")),
            direct_socket=direct_socket,
            start_service=self.archives.starter(loop, Random(f"{seed}/services")),
        )
        self.sim_loop.trace.record("start", self.name)
        coordination = self._coordination

        async def open_session() -> Coordination:
            assert coordination is not None
            self._session = coordination.session(loop, self.name)
            return self._session

        open_or_none = None if coordination is None else open_session
        broker = self.broker = Broker(environment, BrokerConfig.load(self.configs), open_or_none)
        try:
            await loop.run(broker.start())
        except BaseException:
            if self.loop is loop:
                self._end(power=False)
            raise
        loop.create_task(self._run_until_stopped(broker))
        return broker

    async def _run_until_stopped(self, broker: Broker) -> None:
        """Do what the main program does: stop the broker when it asks for it, then exit."""
        await broker.stopped
        await broker.stop()
        self._end(power=False)

    async def stop(self) -> None:
        """Send SIGTERM and wait until the process has ended."""
        broker = self.broker
        assert broker is not None
        if not broker.stopped.done():
            broker.stopped.set_result(None)
        # A caller that is cancelled must not cancel the future for others.
        await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill the process (kill -9): the page cache survives; the kernel closes or resets the connections."""
        self._end(power=False)

    def power_off(self) -> None:
        """Lose power: unsynced data may be lost; peers are not notified."""
        self._end(power=True)

    def replace_disk(self) -> None:
        """Kill the process, and install an empty disk."""
        self._end(power=False)
        self._disks += 1
        self.disk = SimDisk(self.clock, Random(f"{self._seed}/{self.name}/disk/{self._disks}"))
        self.disk.trace = self._trace_disk

    def crash_after(self, changes: int, *, power: bool) -> None:
        """Kill the process, or lose power, in the middle of the disk change after the next `changes` ones."""
        self.disk.crash_after(changes, lambda: self._end(power=power))

    def cancel_crash(self) -> None:
        """Undo `crash_after`."""
        self.disk.cancel_crash()

    def pause(self) -> None:
        """SIGSTOP. The kernel still accepts connections and bytes."""
        self.sim_loop.trace.record("pause", self.name)
        self.loop.pause()

    def resume(self) -> None:
        self.sim_loop.trace.record("resume", self.name)
        self.loop.resume()

    def discard(self) -> None:
        """Close everything that killed processes have left, at the end of a simulation."""
        for loop in self._loops:
            loop.discard()

    def _end(self, *, power: bool) -> None:
        if self.broker is None:
            return
        self.sim_loop.trace.record("end", self.name, power)
        self.on_process_end(power)
        self.broker = None
        self._session = None
        self.loop.die()
        self._ended.set_result(None)
        self.sim_loop.network.crash_host(self.name, silent=power)
        self.disk = self.disk.after_crash(power=power)
        self.disk.trace = self._trace_disk

    def _new_loop(self) -> HostLoop:
        random = Random(f"{self._seed}/{self.name}/{self.starts}/threads")
        return HostLoop(self.sim_loop, self.name, random, lambda: self.disk.take_busy_ns())

    def _trace_disk(self, *fields: object) -> None:
        self.sim_loop.trace.record(self.name, *fields)
