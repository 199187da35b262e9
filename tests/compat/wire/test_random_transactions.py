"""Random stories of transactional ids over the wire, with the answers of Apache Kafka 4.3.1."""

from collections.abc import Iterator

import pytest

from tests.compat.wire.client import Connection
from tests.compat.wire.random_transactions import create_topic, wire
from tests.unit.support.transaction_lines import LineRunner, stories

pytestmark = pytest.mark.feature("transactions")

# Those that use the epochs of a producer id up take 32,000 requests each; the unit tests have them.
STORIES = {name: lines for name, lines in stories() if not name.startswith("exhausted")}


@pytest.fixture(scope="module")
def connection(bootstrap: str) -> Iterator[Connection]:
    found = Connection(bootstrap)
    yield found
    found.close()


@pytest.fixture(scope="module")
def topic(connection: Connection) -> str:
    return create_topic(connection)


@pytest.mark.parametrize("name", STORIES)
def test_answers_are_kafkas(connection: Connection, topic: str, name: str):
    runner = LineRunner(wire(connection, topic))
    for line in STORIES[name]:
        assert runner.run(line.partition(" -> ")[0]) == line
