"""Thread offload in virtual time: the function runs on the loop after a seeded delay, its result arrives later."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The delay before the function runs, and again before its result arrives, in seconds.
THREAD_DELAY_S = (0.000_02, 0.002)


def _no_disk_time() -> int:
    return 0


def run_in_simulated_thread(
    loop: asyncio.AbstractEventLoop,
    random: Random,
    func: Callable[[Unpack[Ts]], T],
    *args: *Ts,
    busy_ns: Callable[[], int] = _no_disk_time,
) -> "asyncio.Future[T]":
    """Run a blocking function. `busy_ns` returns the disk time that it took, which delays its result."""
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = func(*args)
        except Exception as raised:
            error = raised
        loop.call_later(random.uniform(*THREAD_DELAY_S) + busy_ns() / 1e9, deliver, result, error)

    loop.call_later(random.uniform(*THREAD_DELAY_S), run)
    return done
