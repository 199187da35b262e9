"""Random requests for transactional ids over the wire have the results of Apache Kafka 4.4.0."""

from collections.abc import Iterator

import pytest

from tests.compat.wire.client import Client
from tests.compat.wire.random_transactions import create_topic, new_transactional_id
from tests.unit.support.transaction_lines import LineRunner, stories

pytestmark = pytest.mark.feature("transactions")

# The exhaustion of the epochs of a producer id takes 32,000 requests; only the unit tests run those stories.
STORIES = {name: lines for name, lines in stories() if not name.startswith("exhausted")}


@pytest.fixture(scope="module")
def client(bootstrap: str) -> Iterator[Client]:
    client = Client(bootstrap)
    yield client
    client.close()


@pytest.fixture(scope="module")
def topic(client: Client) -> str:
    return create_topic(client)


@pytest.mark.parametrize("name", STORIES)
def test_results_are_those_of_kafka(client: Client, topic: str, name: str):
    runner = LineRunner(new_transactional_id(client, topic))
    for line in STORIES[name]:
        assert runner.run(line.partition(" -> ")[0]) == line
