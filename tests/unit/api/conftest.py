"""Fixtures of the API tests."""

from collections.abc import Iterator

import pytest

from tests.unit.support.group_coordinator import Harness


@pytest.fixture
def group_broker() -> Iterator[Harness]:
    """A group coordinator in virtual time that knows a topic "t" of two partitions."""
    harness = Harness()
    harness.create_topic("t", 2)
    yield harness
    harness.close()
