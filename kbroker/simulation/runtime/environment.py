"""The environment of a broker on a simulated machine: clocks, and process jobs, in virtual time."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock, Environment, ProcessFunction, ProcessJobFailed
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.network.transport import direct_socket
from kbroker.simulation.runtime.loop import SimLoop

# A round number of milliseconds since the epoch, in January 2027.
EPOCH_MS = 1_800_000_000_000
# The monotonic clock when the simulation starts: the machine has been up for some time.
UPTIME_MS = 1_000_000


class SimClock:
    """The wall clock is off by `skew_ms`, which may change at any time; the monotonic clock is not affected."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms
        self._loop = loop

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + self._loop.elapsed_ns // 1_000_000

    def mono_ms(self) -> int:
        return UPTIME_MS + self._loop.elapsed_ns // 1_000_000

    def mono_ns(self) -> int:
        return UPTIME_MS * 1_000_000 + self._loop.elapsed_ns


# The time from a job's start until it takes effect, in seconds.
DELAY_S = (0.05, 2.0)


class SimProcesses:
    """The ProcessRunner of a simulated machine: a job takes effect at one instant after its start, unless it is killed.

    While `held`, new jobs wait in `held_jobs`. `started` counts all jobs by name.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, clock: Clock, random: Random) -> None:
        self.held = False
        self.started: Counter[str] = Counter()
        self._loop = loop
        self._disk = disk
        self._clock = clock
        self._random = random
        self.held_jobs: list[SimProcessJob] = []

    def __call__(self, job: ProcessFunction, task: bytes | bytearray, /) -> "SimProcessJob":
        self.started[getattr(job, "__name__", "")] += 1

        def run() -> bytes:
            return job(self._disk, self._clock, lambda _: None, bytes(task))

        simulated = SimProcessJob(self._loop, run)
        if self.held:
            self.held_jobs.append(simulated)
        else:
            self._start(simulated)
        return simulated

    def _start(self, job: "SimProcessJob") -> None:
        job.start(self._random.uniform(*DELAY_S))

    def release(self) -> None:
        """Start the held jobs; new ones start at once again."""
        self.held = False
        held, self.held_jobs = self.held_jobs, []
        for job in held:
            self._start(job)


class SimProcessJob:
    def __init__(self, loop: asyncio.AbstractEventLoop, run: Callable[[], bytes]) -> None:
        self.done: asyncio.Future[bytes] = loop.create_future()
        self._loop = loop
        self._job = run
        self._timer: asyncio.TimerHandle | None = None

    def start(self, delay_s: float) -> None:
        if not self.done.done():
            self._timer = self._loop.call_later(delay_s, self._run)

    def _run(self) -> None:
        try:
            self.done.set_result(self._job())
        except Exception as error:
            self.done.set_exception(ProcessJobFailed(f"{type(error).__name__}: {error}"))

    def kill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_exception(ProcessJobFailed("the process was killed"))


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
