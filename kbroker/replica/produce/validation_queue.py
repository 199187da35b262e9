"""Where batches wait whose records take long to look into, so that nobody else waits for them.

They take turns, a slice each and one slice a turn of the loop; what may be done in a thread is. Few are held
decompressed at a time, of large ones only one: memory is bounded however many there are. The order of one connection's
batches is kept by the connection, which serves nothing more until such a batch is through.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kbroker.replica.produce.record_validation import Demand, Unfinished, Validated, Work

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.common import Buffer
    from kbroker.runtime.environment import Environment

# Batches that may be held decompressed at a time, and of them such as are larger than MEDIUM_DECOMPRESSED.
MEDIUM_PLACES = 1
LARGE_PLACES = 1
# Slices that a batch gets as fast as the loop turns. One that has more to do than any usual one gets PACED_SLICES in a
# ms: a loop that is never idle would be taken for a mere computation by the system's scheduler.
QUICK_SLICES = 64
PACED_SLICES = 2
PACE_S = 0.001


class ValidationJob:
    """One batch on its way. `done` gives it when it is validated, or raises KafkaError. `holds`: a place."""

    __slots__ = ("asked", "done", "given", "holds", "slices", "work")

    def __init__(self, unfinished: Unfinished, done: Future[Validated]) -> None:
        self.work: Work = unfinished.work
        self.asked = unfinished.asked
        self.done = done
        self.given: Buffer | Exception | None = None
        self.holds: ValidationSlots | None = None
        self.slices = 0

    def give_up(self) -> None:
        """Nobody wants it any more."""
        self.done.cancel()


class ValidationSlots:
    """So many jobs may be at it; the others wait in order."""

    __slots__ = ("free", "waiting")

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiting: dict[ValidationJob, None] = {}


class ValidationQueue:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._turns: deque[ValidationJob] = deque()
        self._medium = ValidationSlots(MEDIUM_PLACES)
        self._large = ValidationSlots(LARGE_PLACES)
        self._scheduled = False
        self._tasks: set[Task[None]] = set()

    def take(self, unfinished: Unfinished) -> ValidationJob:
        job = ValidationJob(unfinished, self._environment.loop.create_future())
        job.done.add_done_callback(lambda done: self._given_up(job) if done.cancelled() else None)
        self._go_on(job)
        return job

    def _go_on(self, job: ValidationJob) -> None:
        """Give the job what it has asked for."""
        asked = job.asked
        if asked is None:
            self._turns.append(job)
            self._schedule()
            return
        places = self._large if asked.large else self._medium
        if job.holds is not places:
            self._leave(job)
            if not places.free:
                places.waiting[job] = None
                return
            places.free -= 1
            job.holds = places
        task = self._environment.loop.create_task(self._apart(job, asked))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _apart(self, job: ValidationJob, asked: Demand) -> None:
        try:
            job.given = await self._environment.offload(asked.work, *asked.arguments)
        except Exception as error:
            # Its frames would keep what was to be decompressed.
            job.given = error.with_traceback(None)
        job.asked = None
        self._go_on(job)

    def _schedule(self) -> None:
        if self._scheduled or not self._turns:
            return
        self._scheduled = True
        if self._turns[0].slices < QUICK_SLICES:
            self._environment.loop.call_soon(self._turn)
        else:
            self._environment.loop.call_later(PACE_S, self._turn)

    def _turn(self) -> None:
        """A slice of the job whose turn it is."""
        self._scheduled = False
        job = self._turns.popleft()
        paced = job.slices >= QUICK_SLICES
        for _ in range(PACED_SLICES if paced else 1):
            job.slices += 1
            if not self._slice(job) or job.asked is not None:
                break
        else:
            self._turns.append(job)
        self._schedule()

    def _slice(self, job: ValidationJob) -> bool:
        """Whether there is more to do; a thing for a thread has been begun then."""
        given, job.given = job.given, None
        try:
            if job.done.cancelled():
                job.work.close()
            else:
                job.asked = job.work.throw(given) if isinstance(given, Exception) else job.work.send(given)
                if job.asked is not None:
                    self._go_on(job)
                return True
        except StopIteration as end:
            job.done.set_result(end.value)
        except Exception as error:
            # Not with all that its frames hold.
            error.__context__ = None
            job.done.set_exception(error.with_traceback(None))
        finally:
            given = None
        self._leave(job)
        return False

    def _leave(self, job: ValidationJob) -> None:
        """Give up a place, to the first who waits for it."""
        places, job.holds = job.holds, None
        if places is None:
            return
        places.free += 1
        if places.waiting:
            following = next(iter(places.waiting))
            del places.waiting[following]
            self._go_on(following)

    def _given_up(self, job: ValidationJob) -> None:
        """Who asked is gone. What is at work in a thread still holds its place until that is done."""
        job.work.close()
        for places in (self._medium, self._large):
            places.waiting.pop(job, None)
