"""Every client's transactions against one broker that looks for transactions to end all the time."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.support import DEADLINE_S, OUTSIDE, running_broker, unique
from tests.compat.transactions.clients import Client
from tests.compat.transactions.confluent import ConfluentClient
from tests.compat.transactions.features import transaction_version
from tests.compat.transactions.java import JavaClient, old_clients
from tests.compat.transactions.python import PythonClient

# How often the coordinator looks for transactions whose time is over. Somebody else's does it every ten seconds.
PROMPT = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
# The oldest Java client that Kafka 4 serves: neither KIP-447 nor KIP-360.
OLDEST = "2.1.1"

REPORT = "consume, transform, produce"


@pytest.fixture(scope="session")
def transacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker."""
    if OUTSIDE:
        yield OUTSIDE
        return
    with running_broker(tmp_path_factory.mktemp("transacting"), PROMPT) as broker:
        yield broker.bootstrap
        broker.stop()


@pytest.fixture(scope="session")
def oldest(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with old_clients(OLDEST, tmp_path_factory.mktemp("oldest") / "log") as java:
        yield java


MAKERS = {
    "confluent": ("confluent_kafka", lambda request, bootstrap: ConfluentClient(bootstrap)),
    "python": ("kafka_python", lambda request, bootstrap: PythonClient(bootstrap)),
    "java": ("kafka_tools", lambda request, bootstrap: JavaClient(request.getfixturevalue("jvm").java, bootstrap)),
    "java v1": ("kafka_tools", lambda request, bootstrap: JavaClient(request.getfixturevalue("jvm").java, bootstrap)),
    "oldest java": (
        "old_java",
        lambda request, bootstrap: JavaClient(request.getfixturevalue("oldest"), bootstrap, knows_kip_447=False),
    ),
}


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.client(column)) for name, (column, _) in MAKERS.items()],
    ids=list(MAKERS),
)
def client(request: pytest.FixtureRequest, transacting: str) -> Iterator[Client]:
    """Every client in turn; the newest Java client also where transaction.version 1 is finalized (no KIP-890)."""
    name = request.param
    with transaction_version(transacting, 1 if name == "java v1" else None):
        made = MAKERS[name][1](request, transacting)
        yield made
        made.close()


@pytest.fixture(scope="session")
def admin(transacting: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": transacting})


@pytest.fixture
def topic(admin: AdminClient, client: Client, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """topic(partitions, {config: value}): the name of a new topic, which is deleted after the test."""
    made: list[str] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = unique(request.node.originalname.removeprefix("test_"))
        admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})])[name].result(DEADLINE_S)
        made.append(name)
        return name

    yield create
    for name, deleted in (admin.delete_topics(made) if made else {}).items():
        assert deleted.exception(DEADLINE_S) is None, f"deleting {name}"


@pytest.fixture
def transactional_id() -> str:
    """Never used before."""
    return unique("transactional")
