"""aiokafka: the clients of a test."""

import pytest

from tests.compat.aiokafka.helpers import Clients


@pytest.fixture
def clients(bootstrap: str, group: str, request: pytest.FixtureRequest) -> Clients:
    return Clients(bootstrap, request.node.originalname.removeprefix("test_"), group)
