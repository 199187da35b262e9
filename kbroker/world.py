"""What the broker may ask of the machine: clocks, a loop, threads, randomness.

Every room receives these as parameters from the composition root, so that the whole broker also runs in virtual
time on simulated disks and networks (DESIGN: the world is passed in). The disk interface is in storage/backend.py.
"""

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from random import Random

    from kbroker.storage.backend import Disk

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


@dataclass(slots=True)
class World:
    """One broker's machine. `loop` carries timers, futures, tasks and sockets; nothing else imports asyncio."""

    loop: AbstractEventLoop
    clock: Clock
    disk: "Disk"
    random: "Random"
    offload: Offload
