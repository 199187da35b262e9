"""One input, one decoder: what may come of it.

The decoder refuses with an error that it declares, or what it gives holds what its case asserts. Meanwhile Python
may take so much memory and so much time for each byte of the input, and a constant.
"""

import time
import traceback
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.unit.fuzz.damage import Case, Step, damaged, random_steps

# What any error with its traceback may take, or an object of each kind.
SMALL = 128 * 1024
BYTES_A_BYTE = 10
# Of processor time: the machine may be busy. Python takes about a microsecond for a small field.
SECONDS = 0.1
SECONDS_A_BYTE = 5e-6


class Target(NamedTuple):
    """A decoder. `make` gives a valid case; `refusals` are the errors that damage may come to.

    `constant`: bytes that decoding may take whatever the input is. `a_byte`: what it may take for each byte of the
    input; more than ten only where the target says why. `weight`: how many times as long as a small message one
    input takes.
    """

    name: str
    make: Callable[[Random], Case]
    refusals: tuple[type[Exception], ...]
    constant: int = SMALL
    a_byte: int = BYTES_A_BYTE
    seconds: float = SECONDS
    weight: float = 1.0


class Failure(NamedTuple):
    """`kind` is the same for failures of one cause, as far as can be told."""

    kind: str
    detail: str


def chance(target: Target, seed: int, number: int) -> tuple[Case, list[Step]]:
    """The case and the damage of one input of a run."""
    rng = Random(f"{target.name}/{seed}/{number}")
    return target.make(rng), random_steps(rng)


def check(target: Target, case: Case, data: bytes, *, memory: bool = False) -> Failure | None:
    """Decode one input. `memory` measures it too, which takes several times as long."""
    began = time.thread_time()
    failure = _outcome(target, case, data)
    if failure is not None:
        return failure
    limit = target.seconds + SECONDS_A_BYTE * len(data)
    taken = time.thread_time() - began
    if taken > limit:
        taken = min(taken, *(_seconds(target, case, data) for _ in range(2)))
        if taken > limit:
            return Failure("slow", f"{taken:.2f} s for {len(data)} bytes; {limit:.2f} s would do")
    return _check_memory(target, case, data) if memory else None


def _outcome(target: Target, case: Case, data: bytes) -> Failure | None:
    try:
        case.run(data)
    except target.refusals:
        return None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        return Failure(f"{type(error).__name__} at {where}", traceback.format_exc(limit=-6))
    return None


def _seconds(target: Target, case: Case, data: bytes) -> float:
    began = time.thread_time()
    _outcome(target, case, data)
    return time.thread_time() - began


def _check_memory(target: Target, case: Case, data: bytes) -> Failure | None:
    allowed = target.a_byte * len(data) + target.constant
    tracemalloc.start()
    try:
        _outcome(target, case, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > allowed:
        return Failure("memory", f"{peak} bytes for {len(data)}; {allowed} would do")
    return None


def smallest(target: Target, case: Case, steps: list[Step], kind: str) -> list[Step]:
    """Without the steps that a failure does not need."""
    kept = list(steps)
    for step in steps:
        fewer = [one for one in kept if one is not step]
        failure = check(target, case, damaged(case, fewer), memory=kind == "memory")
        if failure is not None and failure.kind == kind:
            kept = fewer
    return kept
