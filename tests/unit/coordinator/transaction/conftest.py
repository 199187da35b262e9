"""A transaction coordinator for each test, closed at its end."""

from collections.abc import Callable, Iterator

import pytest

from tests.unit.support.transaction_coordinator import Harness


@pytest.fixture
def make() -> Iterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def build(harness: Harness | None = None, **config: object) -> Harness:
        harnesses.append(harness or Harness(**config))  # type: ignore[arg-type]
        return harnesses[-1]

    yield build
    for harness in harnesses:
        harness.close()


@pytest.fixture
def h(make: Callable[..., Harness]) -> Harness:
    return make()
