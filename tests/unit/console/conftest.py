"""A broker for each file, and browsers that may change its cluster."""

from collections.abc import Iterator

import pytest

from kbroker.testing import Broker
from tests.unit.console.browser import Browser, browse


@pytest.fixture(scope="module")
def _kafka_broker() -> Iterator[Broker]:
    with Broker({"transaction.partition.verification.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def browser(kafka: Broker) -> Iterator[Browser]:
    with browse(kafka.bootstrap) as opened:
        yield opened
