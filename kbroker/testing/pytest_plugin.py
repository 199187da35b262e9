"""The pytest plugin: the fixtures `kafka` and `kafka_cluster`.

Each process of pytest-xdist has a broker of its own. pytest loads this file in every project, so it imports nothing of
the broker before a test asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kbroker.testing import Broker, Cluster

LEFTOVERS = "kafka_leftovers"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(LEFTOVERS, "fail a test that leaves Kafka topics, members of groups or faults behind", "bool", False)
    parser.getgroup("kafka").addoption(
        "--kafka-leftovers", action="store_true", help="Fail a test that leaves topics, members or faults behind."
    )


@pytest.fixture(scope="session")
def _kafka_broker() -> Iterator[Broker]:
    from kbroker.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka(_kafka_broker: Broker, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker that the tests of a session share. Names of new topics begin with the name of the test.

    After a test its faults and the recorded requests are gone, the disk is free and the broker runs. A test that has
    moved the clock or filled the disk leaves an empty broker in the time of the machine, at the same address.
    """
    broker = _kafka_broker
    broker.topic_prefix = _prefix(request.node.name)
    checks = request.config.getoption("kafka_leftovers") or request.config.getini(LEFTOVERS)
    before = broker.topics() if checks else []
    broker.request_log.clear()
    yield broker
    left = broker.leftovers(before) if checks else []
    broker.reset(keep_data=True)
    if left:
        pytest.fail(f"the test has left behind: {'; '.join(left)}", pytrace=False)


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., Cluster]]:
    """Start clusters, `kafka_cluster(brokers=3)`, which end with the test."""
    from kbroker.testing import Cluster

    with ExitStack() as stack:

        def start(brokers: int = 3, configs: Any = None) -> Cluster:
            cluster = Cluster(brokers, configs)
            cluster.topic_prefix = _prefix(request.node.name)
            return stack.enter_context(cluster)

        yield start


def _prefix(test: str) -> str:
    """Return the name of a test as the beginning of a topic's name, of at most 100 of the 249 allowed characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", test)[:100].strip("-.") or "test"
