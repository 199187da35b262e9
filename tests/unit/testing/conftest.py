"""The broker of these tests ends with each file: tests that measure memory may follow in the same process."""

from collections.abc import Iterator

import pytest

from kbroker.testing import Broker


@pytest.fixture(scope="module")
def _kafka_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
