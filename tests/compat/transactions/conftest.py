"""Transactions of every client, against one broker that checks for expired transactions every 100 ms."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.support import DEADLINE_S, EXTERNAL_BOOTSTRAP, running_broker, unique
from tests.compat.transactions.clients import Client
from tests.compat.transactions.confluent_client import ConfluentClient
from tests.compat.transactions.java_client import JavaClient, old_clients
from tests.compat.transactions.kafka_python_client import KafkaPythonClient
from tests.compat.transactions.transaction_version import transaction_version

# The interval at which the coordinator aborts expired transactions. Kafka's default is ten seconds.
PROMPT_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
# The oldest Java client that Kafka 4 supports: without KIP-447 and KIP-360.
OLDEST = "2.1.1"
# The last client without topic ids in TxnOffsetCommit (KIP-1319) and without KIP-1242.
FORMER = "4.3.1"

REPORT = "consume, transform, produce"


@pytest.fixture(scope="session")
def transactional_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker."""
    if EXTERNAL_BOOTSTRAP:
        yield EXTERNAL_BOOTSTRAP
        return
    with running_broker(tmp_path_factory.mktemp("transactions"), PROMPT_TIMEOUTS) as broker:
        yield broker.bootstrap
        broker.stop()


@pytest.fixture(scope="session")
def oldest(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with old_clients(OLDEST, tmp_path_factory.mktemp("oldest") / "log") as java:
        yield java


@pytest.fixture(scope="session")
def former(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with old_clients(FORMER, tmp_path_factory.mktemp("former") / "log") as java:
        yield java


CLIENTS = {
    "confluent": ("confluent_kafka", lambda request, bootstrap: ConfluentClient(bootstrap)),
    "python": ("kafka_python", lambda request, bootstrap: KafkaPythonClient(bootstrap)),
    "java": ("kafka_tools", lambda request, bootstrap: JavaClient(request.getfixturevalue("jvm").java, bootstrap)),
    "java v1": ("kafka_tools", lambda request, bootstrap: JavaClient(request.getfixturevalue("jvm").java, bootstrap)),
    "former java": ("old_java", lambda request, bootstrap: JavaClient(request.getfixturevalue("former"), bootstrap)),
    "oldest java": (
        "old_java",
        lambda request, bootstrap: JavaClient(request.getfixturevalue("oldest"), bootstrap, knows_kip_447=False),
    ),
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.client(column)) for name, (column, _) in CLIENTS.items()],
    ids=list(CLIENTS),
)
def client(request: pytest.FixtureRequest, transactional_broker: str) -> Iterator[Client]:
    """Each client; the current Java client also with transaction.version 1 finalized (no KIP-890)."""
    name = request.param
    with transaction_version(transactional_broker, 1 if name == "java v1" else None):
        client = CLIENTS[name][1](request, transactional_broker)
        yield client
        client.close()


@pytest.fixture(scope="session")
def admin(transactional_broker: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": transactional_broker})


@pytest.fixture
def topic(admin: AdminClient, client: Client, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """topic(partitions, {config: value}): the name of a new topic, which is deleted after the test."""
    topics: list[str] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = unique(request.node.originalname.removeprefix("test_"))
        admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})])[name].result(DEADLINE_S)
        topics.append(name)
        return name

    yield create
    for name, deleted in (admin.delete_topics(topics) if topics else {}).items():
        assert deleted.exception(DEADLINE_S) is None, f"deleting {name}"


@pytest.fixture
def transactional_id() -> str:
    """A transactional id that was never used before."""
    return unique("transactional")
