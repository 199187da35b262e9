"""The clients that an aiokafka test opens in its event loop."""

import pytest

from tests.compat.aiokafka.helpers import Clients


@pytest.fixture
def clients(bootstrap: str, group: str, request: pytest.FixtureRequest) -> Clients:
    return Clients(bootstrap, request.node.originalname.removeprefix("test_"), group)
