"""Unchanged clients with delayed records, views, idempotency keys and closing partitions."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.queues.aiokafka_client import Aiokafka
from tests.compat.queues.clients import Client
from tests.compat.queues.confluent_client import ConfluentKafka
from tests.compat.queues.kafka_python_client import KafkaPython
from tests.compat.queues.program_clients import ProgramClient
from tests.compat.queues.reading_clients import PROGRAMS, kafka_go, queue_program
from tests.compat.queues.stories import STORIES
from tests.compat.support import need_own_broker
from tests.compat.toolchains import javascript_directory

pytestmark = [pytest.mark.compat, pytest.mark.feature("queues")]


def go(bootstrap: str, directory: Path) -> Client:
    return ProgramClient([queue_program(directory), "franz-go", bootstrap])


def javascript(bootstrap: str, directory: Path) -> Client:
    program = shutil.copy(PROGRAMS / "queue_client.js", javascript_directory())
    return ProgramClient(["node", program, bootstrap])


# By the client's column in the matrix.
CLIENTS: dict[str, Callable[[str, Path], Client]] = {
    "kafka_python": lambda bootstrap, _: KafkaPython(bootstrap),
    "confluent_kafka": lambda bootstrap, _: ConfluentKafka(bootstrap),
    "aiokafka": lambda bootstrap, _: Aiokafka(bootstrap),
    "go": go,
    "kafka_go": lambda bootstrap, directory: kafka_go(queue_program(directory), bootstrap, in_group=True),
    "javascript": javascript,
}


@pytest.fixture(
    scope="module", params=[pytest.param(client, marks=pytest.mark.client(client)) for client in CLIENTS], ids=str
)
def client(
    request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Each client, started once for all stories."""
    need_own_broker()
    client = CLIENTS[request.param](bootstrap, tmp_path_factory.mktemp("program"))
    yield client
    client.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_client_does_not_notice(
    client: Client, bootstrap: str, name: str, story: Callable[[Client, str, str], None]
) -> None:
    story(client, bootstrap, name)
