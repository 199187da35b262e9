"""A transaction coordinator for each story, closed at its end."""

from collections.abc import Callable, Iterator

import pytest

from tests.unit.support.transaction_coordinator import Harness


@pytest.fixture
def make() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def add(harness: Harness | None = None, **config: object) -> Harness:
        made.append(harness or Harness(**config))  # type: ignore[arg-type]
        return made[-1]

    yield add
    for harness in made:
        harness.close()


@pytest.fixture
def h(make: Callable[..., Harness]) -> Harness:
    return make()
