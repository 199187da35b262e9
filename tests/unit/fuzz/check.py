"""Runs one decoder on one input and checks the outcome.

The decoder must return a result that satisfies the assertions of its case, or raise one of the errors of its target.
Its memory and processor time are bounded by a constant and an amount per byte of the input.
"""

import time
import traceback
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.unit.fuzz.damage import Case, Step, damaged, random_steps

# The memory of an error with its traceback, or of an object of each kind.
DEFAULT_CONSTANT = 128 * 1024
MEMORY_PER_BYTE = 10
# Processor time, since the machine may be busy. Python takes about a microsecond for a small field.
SECONDS = 0.1
SECONDS_PER_BYTE = 5e-6


class Target(NamedTuple):
    """A decoder.

    make: returns a valid case.
    errors: the errors that the decoder may raise for damaged input.
    constant, memory_per_byte: the bounds of its memory in bytes, per input and per byte of the input.
    seconds: the bound of its processor time per input; SECONDS_PER_BYTE is added.
    weight: its processor time per input as a multiple of that for a small message.
    """

    name: str
    make: Callable[[Random], Case]
    errors: tuple[type[Exception], ...]
    constant: int = DEFAULT_CONSTANT
    memory_per_byte: int = MEMORY_PER_BYTE
    seconds: float = SECONDS
    weight: float = 1.0


class Failure(NamedTuple):
    """`kind` is the same for failures that probably have the same cause."""

    kind: str
    detail: str


def random_input(target: Target, seed: int, number: int) -> tuple[Case, list[Step]]:
    """Return the case and the damage of input `number` of a run."""
    rng = Random(f"{target.name}/{seed}/{number}")
    return target.make(rng), random_steps(rng)


def check(target: Target, case: Case, data: bytes, *, memory: bool = False) -> Failure | None:
    """Decode one input. `memory`: also measure its memory, which takes several times as long."""
    started = time.thread_time()
    failure = _outcome(target, case, data)
    if failure is not None:
        return failure
    limit = target.seconds + SECONDS_PER_BYTE * len(data)
    elapsed = time.thread_time() - started
    if elapsed > limit:
        elapsed = min(elapsed, *(_seconds(target, case, data) for _ in range(2)))
        if elapsed > limit:
            return Failure("slow", f"{elapsed:.2f} s for {len(data)} bytes, at most {limit:.2f} s allowed")
    return _check_memory(target, case, data) if memory else None


def _outcome(target: Target, case: Case, data: bytes) -> Failure | None:
    try:
        case.run(data)
    except target.errors:
        return None
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{line.filename.rsplit('/', 1)[-1]}:{line.lineno}"
        return Failure(f"{type(error).__name__} at {where}", traceback.format_exc(limit=-6))
    return None


def _seconds(target: Target, case: Case, data: bytes) -> float:
    started = time.thread_time()
    _outcome(target, case, data)
    return time.thread_time() - started


def _check_memory(target: Target, case: Case, data: bytes) -> Failure | None:
    allowed = target.memory_per_byte * len(data) + target.constant
    tracemalloc.start()
    try:
        _outcome(target, case, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > allowed:
        return Failure("memory", f"{peak} bytes for {len(data)} bytes, at most {allowed} allowed")
    return None


def shrink(target: Target, case: Case, steps: list[Step], kind: str) -> list[Step]:
    """Return the steps without those that the failure does not need."""
    kept = list(steps)
    for step in steps:
        fewer = [other for other in kept if other is not step]
        failure = check(target, case, damaged(case, fewer), memory=kind == "memory")
        if failure is not None and failure.kind == kind:
            kept = fewer
    return kept
