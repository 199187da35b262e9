"""Process jobs in virtual time: a job takes effect at one instant, some time after its start, unless it is killed."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock, ProcessFunction, ProcessJobFailed

# The time from a job's start until it takes effect, in seconds.
DELAY_S = (0.05, 2.0)


class SimProcesses:
    """The ProcessRunner of a simulated machine.

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
