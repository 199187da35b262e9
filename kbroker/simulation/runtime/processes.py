"""Processes in virtual time: a job is done in one instant, some time after it was begun, unless it is killed before."""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock, ProcessJobFailed, ProcessTask

# How long a job takes until it has its effect, in seconds.
DELAY_S = (0.05, 2.0)


class SimProcesses:
    """The `Apart` of a simulated machine. While `held`, jobs that are begun wait; `began` counts them by name."""

    def __init__(self, loop: asyncio.AbstractEventLoop, disk: Disk, clock: Clock, random: Random) -> None:
        self.held = False
        self.began: Counter[str] = Counter()
        self._loop = loop
        self._disk = disk
        self._clock = clock
        self._random = random
        self._waiting: list[SimErrand] = []

    def __call__(self, job: ProcessTask, task: bytes, /) -> "SimErrand":
        self.began[getattr(job, "__name__", "")] += 1

        def work() -> bytes:
            return job(self._disk, self._clock, lambda _: None, task)

        errand = SimErrand(self._loop, work)
        if self.held:
            self._waiting.append(errand)
        else:
            self._begin(errand)
        return errand

    def _begin(self, errand: "SimErrand") -> None:
        errand.begin(self._random.uniform(*DELAY_S))

    def release(self) -> None:
        """Let the jobs go on, those that wait and those to come."""
        self.held = False
        waiting, self._waiting = self._waiting, []
        for errand in waiting:
            self._begin(errand)


class SimErrand:
    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], bytes]) -> None:
        self.done: asyncio.Future[bytes] = loop.create_future()
        self._loop = loop
        self._work = work
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, delay_s: float) -> None:
        if not self.done.done():
            self._timer = self._loop.call_later(delay_s, self._run)

    def _run(self) -> None:
        try:
            self.done.set_result(self._work())
        except Exception as error:
            self.done.set_exception(ProcessJobFailed(f"{type(error).__name__}: {error}"))

    def kill(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_exception(ProcessJobFailed("it is not wanted any more"))
