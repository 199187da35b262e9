"""A group coordinator for each test, closed at its end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.support.group_coordinator import Harness


@pytest.fixture
def make() -> Iterator[Callable[..., Harness]]:
    brokers: list[Harness] = []

    def build(*args: Any, **config: Any) -> Harness:
        brokers.append(Harness(*args, **config))
        return brokers[-1]

    yield build
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(make: Callable[..., Harness]) -> Harness:
    """A coordinator, and a topic "t" of three partitions."""
    harness = make()
    harness.create_topic("t", 3)
    return harness
