"""A mutation: a mistake planted in the broker, and the search for a seed whose run detects it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from kbroker.simulation.scenarios.run import Result, simulate
from tests.unit.simulation.mutations.shapes import Shape, short

Plant = Callable[[pytest.MonkeyPatch], None]

# The maximum number of seeds to try; most mutations are caught by the first.
SEEDS = 20


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake in the broker. `text`: the mistake. `scenario`: the scenario to run. `signs`: the kinds of anomalies,
    or the exceptions, that may catch it. `shape`: restricts the scenario so that a seed takes at most a second.
    `first_seed`: the seed at which the search begins, to save time."""

    name: str
    text: str
    plant: Plant
    scenario: str
    signs: tuple[str, ...]
    shape: Shape
    first_seed: int = 0

    @contextmanager
    def planted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield

    def run(self, seed: int) -> Result:
        with self.planted():
            return simulate(seed, self.scenario, shape=self.shape)


def mutation(
    text: str, *, scenario: str, signs: tuple[str, ...], shape: Shape | None = None, first_seed: int = 0
) -> Callable[[Plant], Mutation]:
    def create(plant: Plant) -> Mutation:
        return Mutation(plant.__name__, text, plant, scenario, signs, shape or short(), first_seed)

    return create


def signs_of(result: Result) -> list[str]:
    """Return what a run detected: the exception that ended it, then the kinds of its anomalies."""
    ended = [result.failure.partition(":")[0]] if result.failure else []
    return ended + list(dict.fromkeys(anomaly.kind for anomaly in result.anomalies))


def caught_by(mutation: Mutation) -> tuple[int, list[str]] | None:
    """Return the first seed that catches the mutation, and its signs; None if no seed does."""
    for number in range(SEEDS):
        seed = (mutation.first_seed + number) % SEEDS
        if signs := signs_of(mutation.run(seed)):
            return seed, signs
    return None
