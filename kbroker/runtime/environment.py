"""What the broker may ask of the machine: clocks, a loop, threads, processes, randomness.

Every room receives these as parameters from the composition root, so that the whole broker also runs in virtual
time on simulated disks and networks (DESIGN: the world is passed in). The disk interface is in storage/backend.py.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Handle
    from random import Random

    from kbroker.runtime.disk import Disk

T = TypeVar("T")


class Clock(Protocol):
    """A wall clock and a monotonic one, in milliseconds; the latter in nanoseconds too."""

    def now_ms(self) -> int:
        """Wall clock since the epoch: record timestamps, retention, anything that is stored."""
        ...

    def mono_ms(self) -> int:
        """Monotonic clock: sessions, deadlines, intervals; never stored."""
        ...

    def mono_ns(self) -> int:
        """The monotonic clock for short times: how long a request takes."""
        ...


class Offload(Protocol):
    """Runs a blocking function away from the loop and gives its result back on it."""

    def __call__(self, fn: Callable[..., T], /, *args: object) -> Awaitable[T]: ...


class ProcessFunction(Protocol):
    """What can be done in another process: a function of a module, which is given the disk, clocks, a way to wait for
    some seconds, and its task, and gives its result."""

    def __call__(self, disk: "Disk", clock: Clock, sleep: Callable[[float], None], task: bytes, /) -> bytes: ...


class ProcessJobFailed(Exception):
    """The process ended without a result: it was killed, or it failed as it must not."""


class ProcessJob(Protocol):
    """A job under way in another process, which ends with this one whatever happens. `done` gives its result on the
    loop, or raises ErrandFailed when the process has ended without one."""

    @property
    def done(self) -> Awaitable[bytes]: ...

    def kill(self) -> None:
        """It is not wanted any more: from when `done` is, the process has no effect."""
        ...


class ProcessRunner(Protocol):
    """Does a job in a process of its own that gets only what time and disk the others leave."""

    def __call__(self, job: ProcessFunction, task: bytes, /) -> ProcessJob: ...


class DescriptorLimits(NamedTuple):
    """How the file descriptors of the process (RLIMIT_NOFILE) are divided.

    The system assigns the lowest free number. A connection whose number is not below `connections` is refused, and the
    disk does not keep a file open whose number is not below `files`. So connections leave descriptors to the logs, and
    both leave some to what is open for a short time: directories that are synced, checkpoints, modules that are
    imported at first use, the pipes of the cleaner's process.
    """

    limit: int
    files: int
    connections: int

    @classmethod
    def of(cls, limit: int) -> "DescriptorLimits":
        """`limit`: the number of file descriptors that the process may have."""
        for_files = max(limit // 4, min(100, limit // 2))
        return cls(limit, limit - min(32, limit // 4), limit - for_files)


UNLIMITED_DESCRIPTORS = DescriptorLimits.of(1 << 30)


def _no_threads(count: int) -> None:
    """Where there are no threads to count."""


@dataclass(slots=True)
class Environment:
    """One broker's machine. `loop` carries timers, futures, tasks and sockets; nothing else imports asyncio.

    `set_threads` says how many threads `offload` has from now on.
    """

    loop: "AbstractEventLoop"
    clock: Clock
    disk: "Disk"
    random: "Random"
    offload: Offload
    process_runner: ProcessRunner
    set_thread_count: Callable[[int], None] = _no_threads
    descriptors: DescriptorLimits = UNLIMITED_DESCRIPTORS

    async def yield_to_loop(self) -> None:
        """Let the others have a turn of the loop."""
        yield_to_loop = self.loop.create_future()
        await _unless_cancelled(yield_to_loop, self.loop.call_soon(yield_to_loop.set_result, None))

    async def sleep(self, seconds: float) -> None:
        again = self.loop.create_future()
        await _unless_cancelled(again, self.loop.call_later(seconds, again.set_result, None))


async def _unless_cancelled(future: "Future[None]", handle: "Handle") -> None:
    """Who waits may be gone, a client or the broker that stops: a cancelled future takes no result."""
    try:
        await future
    finally:
        handle.cancel()
