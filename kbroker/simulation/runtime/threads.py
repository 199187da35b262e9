"""What would run in a thread runs on the loop, after a seeded delay; its result arrives after another."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# How long a job of a thread takes before it has its effect, and again until the loop knows, in seconds.
THREAD_DELAY_S = (0.000_02, 0.002)


def _idle() -> int:
    return 0


def in_thread(
    loop: asyncio.AbstractEventLoop,
    random: Random,
    func: Callable[[Unpack[Ts]], T],
    *args: *Ts,
    busy_ns: Callable[[], int] = _idle,
) -> "asyncio.Future[T]":
    """Run a blocking function some time from now. `busy_ns`: how long the disk was busy with what it has done."""
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = func(*args)
        except Exception as raised:
            error = raised
        loop.call_later(random.uniform(*THREAD_DELAY_S) + busy_ns() / 1e9, deliver, result, error)

    loop.call_later(random.uniform(*THREAD_DELAY_S), work)
    return done
