"""A mutation: a mistake planted in the broker, and the search for a seed whose run detects it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.simulation.runtime import loop
from kbroker.simulation.scenarios import run as scenario_run
from kbroker.simulation.scenarios.plan import Plan
from kbroker.simulation.scenarios.run import Result, simulate
from protocol.apis import ALL_APIS
from protocol.errors import ErrorCode
from tests.unit.simulation.mutations.shapes import Shape, short

Plant = Callable[[pytest.MonkeyPatch], None]

# The maximum number of seeds to try; most mutations are caught by the first.
SEEDS = 20
INVARIANT = "BrokenInvariant"
LIVENESS = "LivenessError"
SPINNING = "SpinningError"
# Limits where they are what catches a mutation: of each step after the faults, in virtual seconds, and of iterations of
# the loop without time passing.
STEP_TIMEOUT_S = 60.0
MAX_ITERATIONS_WITHOUT_TIME = 10_000


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake in the broker; the docstring of `plant` says which. `scenario`: the scenario to run. `signs`: the
    kinds of anomalies, or the exceptions, that may catch it. `shape`: restricts the scenario so that a seed takes at
    most a second. `first_seed`: the seed at which the search begins, to save time. `is_slow`: it takes longer than
    most, and only a third of those are part of a normal run."""

    plant: Plant
    scenario: str
    signs: list[str]
    shape: Shape
    first_seed: int = 0
    is_slow: bool = False

    @property
    def name(self) -> str:
        return self.plant.__name__

    @contextmanager
    def with_limits(self) -> Iterator[pytest.MonkeyPatch]:
        with pytest.MonkeyPatch.context() as patch:
            if LIVENESS in self.signs:
                patch.setattr(scenario_run, "STEP_TIMEOUT_S", STEP_TIMEOUT_S)
            if SPINNING in self.signs:
                patch.setattr(loop, "MAX_ITERATIONS_WITHOUT_TIME", MAX_ITERATIONS_WITHOUT_TIME)
            yield patch

    @contextmanager
    def planted(self) -> Iterator[None]:
        # Handlers are imported at their first request. One that was imported now would keep a patched constant.
        for api in ALL_APIS.values():
            import_module(f"kbroker.api.{api.module}")
        with self.with_limits() as patch:
            self.plant(patch)
            yield

    def run(self, seed: int) -> Result:
        with self.planted():
            return simulate(seed, self.scenario, shape=self.shape)

    def run_without(self, seed: int, until_s: float) -> Result:
        """Run the seed without the mistake. Faults end after `until_s` virtual seconds at the latest: when the mutation
        was caught. What comes later in the seed's plan says nothing about the mutation."""

        def shape(plan: Plan) -> None:
            self.shape(plan)
            plan.seconds = min(plan.seconds, until_s)

        with self.with_limits():
            return simulate(seed, self.scenario, shape=shape)


MUTATIONS: list[Mutation] = []


def mutation(
    scenario: str, signs: list[str], shape: Shape | None = None, *, first_seed: int = 0, slow: bool = False
) -> Callable[[Plant], Plant]:
    """Add a mutation, which the decorated function plants, to MUTATIONS."""

    def add(plant: Plant) -> Plant:
        assert plant.__name__ not in {mutation.name for mutation in MUTATIONS}
        MUTATIONS.append(Mutation(plant, scenario, signs, shape or short(), first_seed, slow))
        return plant

    return add


def wrap(patch: pytest.MonkeyPatch, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a function or method by `wrapper`, whose first argument is the original."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **named: wrapper(original, *arguments, **named))


def replaces(owner: Any, name: str) -> Callable[[Callable[..., Any]], Plant]:
    """Plant the decorated function in place of a function or method; its first argument is the original."""

    def make(wrapper: Callable[..., Any]) -> Plant:
        @functools.wraps(wrapper)
        def plant(patch: pytest.MonkeyPatch) -> None:
            wrap(patch, owner, name, wrapper)

        return plant

    return make


def ignore_errors(patch: pytest.MonkeyPatch, owner: Any, name: str, *codes: ErrorCode) -> None:
    """Let a function or method return None instead of raising these errors."""

    def ignore(original: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return original(*arguments)
        except KafkaError as error:
            if error.code not in codes:
                raise

    wrap(patch, owner, name, ignore)


class Without:
    """A file, one method of which does nothing."""

    def __init__(self, file: Any, method: str) -> None:
        self._file, self._method = file, method

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name == self._method else getattr(self._file, name)


def signs_of(result: Result) -> list[str]:
    """Return what a run detected: the exception that ended it, then the kinds of its anomalies."""
    ended = [result.failure.partition(":")[0]] if result.failure else []
    return ended + list(dict.fromkeys(anomaly.kind for anomaly in result.anomalies))


def caught_by(mutation: Mutation) -> Result | None:
    """Return the run of the first seed that catches the mutation; None if no seed does."""
    for number in range(SEEDS):
        result = mutation.run((mutation.first_seed + number) % SEEDS)
        if signs_of(result):
            return result
    return None
