"""What a planted fault is, and how it is hunted: seed after seed, until a run says that something is wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from kbroker.simulation.scenarios.run import Result, simulate
from tests.unit.simulation.mutations.shapes import Shape, short

Plant = Callable[[pytest.MonkeyPatch], None]

# So many seeds of each scenario at most; every mutation is caught within that, mostly by the first of them.
SEEDS = 20


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake at one place of the broker. `text`: what the broker does wrong. `scenario`: where it shows. `signs`:
    the kinds of anomalies, or of what ends a run, that it may be caught by. `shape`: what is tried of the scenario, so
    that a seed takes a second or less. `first_seed`: where the search begins, to save time."""

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
    def made(plant: Plant) -> Mutation:
        return Mutation(plant.__name__, text, plant, scenario, signs, shape or short(), first_seed)

    return made


def signs_of(result: Result) -> list[str]:
    """What a run was caught by: what ended it, then the kinds of its anomalies."""
    ended = [result.failure.partition(":")[0]] if result.failure else []
    return ended + list(dict.fromkeys(one.kind for one in result.anomalies))


def caught_by(mutation: Mutation) -> tuple[int, list[str]] | None:
    """(the seed, by what it was caught); None if it was not."""
    for number in range(SEEDS):
        seed = (mutation.first_seed + number) % SEEDS
        if signs := signs_of(mutation.run(seed)):
            return seed, signs
    return None
