"""Thread offload in virtual time: the function runs on the loop after a seeded delay, its result arrives later."""

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The delay before the function runs, and again before its result arrives, in seconds.
THREAD_DELAY_S = (0.000_02, 0.002)


def no_disk_time() -> Iterator[int]:
    return iter(())


def run_in_simulated_thread(
    loop: asyncio.AbstractEventLoop,
    random: Random,
    func: Callable[[Unpack[Ts]], T],
    *args: *Ts,
    busy_ns: Callable[[], Iterator[int]] = no_disk_time,
) -> "asyncio.Future[T]":
    """Run a blocking function. `busy_ns` returns the disk time that it took, in steps, which delays its result."""
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
        steps = busy_ns()

        def wait() -> None:
            for step_ns in steps:
                if step_ns:
                    loop.call_later(step_ns / 1e9, wait)
                    return
            deliver(result, error)

        loop.call_later(random.uniform(*THREAD_DELAY_S) + next(steps, 0) / 1e9, wait)

    loop.call_later(random.uniform(*THREAD_DELAY_S), run)
    return done
