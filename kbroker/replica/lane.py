"""Where batches wait whose records take long to look into, so that nobody else waits for them.

They take turns, a slice each and one slice a turn of the loop; what may be done in a thread is. Few are held
decompressed at a time, of large ones only one: memory is bounded however many there are. The order of one connection's
batches is kept by the connection, which serves nothing more until such a batch is through.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kbroker.replica.records import Demand, Unfinished, Validated, Work

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.model import Buffer
    from kbroker.world import World

# Batches that may be held decompressed at a time, and of them such as are larger than MEDIUM_DECOMPRESSED.
MEDIUM_PLACES = 2
LARGE_PLACES = 1


class Job:
    """One batch on its way. `done` gives it when it is validated, or raises KafkaError. `holds`: a place."""

    __slots__ = ("asked", "done", "given", "holds", "work")

    def __init__(self, unfinished: Unfinished, done: Future[Validated]) -> None:
        self.work: Work = unfinished.work
        self.asked = unfinished.asked
        self.done = done
        self.given: Buffer | Exception | None = None
        self.holds: Places | None = None

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self.done.cancel()


class Places:
    """So many jobs may be at it; the others wait in order."""

    __slots__ = ("free", "waiting")

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiting: dict[Job, None] = {}


class Lane:
    def __init__(self, world: World) -> None:
        self._world = world
        self._turns: deque[Job] = deque()
        self._medium = Places(MEDIUM_PLACES)
        self._large = Places(LARGE_PLACES)
        self._scheduled = False
        self._tasks: set[Task[None]] = set()

    def take(self, unfinished: Unfinished) -> Job:
        job = Job(unfinished, self._world.loop.create_future())
        job.done.add_done_callback(lambda done: self._given_up(job) if done.cancelled() else None)
        self._go_on(job)
        return job

    def _go_on(self, job: Job) -> None:
        """Give the job what it has asked for."""
        asked = job.asked
        if asked is None:
            self._turns.append(job)
            if not self._scheduled:
                self._scheduled = True
                self._world.loop.call_soon(self._turn)
            return
        places = self._large if asked.large else self._medium
        if job.holds is not places:
            self._leave(job)
            if not places.free:
                places.waiting[job] = None
                return
            places.free -= 1
            job.holds = places
        task = self._world.loop.create_task(self._apart(job, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apart(self, job: Job, asked: Demand) -> None:
        try:
            job.given = await self._world.offload(asked.work, *asked.arguments)
        except Exception as error:
            job.given = error
        job.asked = None
        self._go_on(job)

    def _turn(self) -> None:
        """One slice of one job."""
        self._scheduled = False
        job = self._turns.popleft()
        given, job.given = job.given, None
        try:
            if job.done.cancelled():
                job.work.close()
                self._leave(job)
            elif isinstance(given, Exception):
                job.asked = job.work.throw(given)
                self._go_on(job)
            else:
                job.asked = job.work.send(given)
                self._go_on(job)
        except StopIteration as end:
            self._leave(job)
            job.done.set_result(end.value)
        except Exception as error:
            self._leave(job)
            job.done.set_exception(error)
        if self._turns and not self._scheduled:
            self._scheduled = True
            self._world.loop.call_soon(self._turn)

    def _leave(self, job: Job) -> None:
        """Give up a place, to the first who waits for it."""
        places, job.holds = job.holds, None
        if places is None:
            return
        places.free += 1
        if places.waiting:
            following = next(iter(places.waiting))
            del places.waiting[following]
            self._go_on(following)

    def _given_up(self, job: Job) -> None:
        """Who asked is gone. What is at work in a thread still holds its place until that is done."""
        job.work.close()
        for places in (self._medium, self._large):
            places.waiting.pop(job, None)
