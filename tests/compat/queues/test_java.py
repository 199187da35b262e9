"""Apache Kafka's Java client with delayed records, views, idempotency keys and closing partitions."""

from collections.abc import Callable, Iterator

import pytest

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.queues.clients import Client
from tests.compat.queues.java_client import JavaClient
from tests.compat.queues.stories import STORIES
from tests.compat.support import need_own_broker

pytestmark = [pytest.mark.compat, pytest.mark.feature("queues"), pytest.mark.client("kafka_tools")]


@pytest.fixture(scope="module")
def client(bootstrap: str, jvm: Jvm) -> Iterator[Client]:
    need_own_broker()
    client = JavaClient(bootstrap, jvm)
    yield client
    client.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_client_does_not_notice(
    client: Client, bootstrap: str, name: str, story: Callable[[Client, str, str], None]
) -> None:
    story(client, bootstrap, name)
