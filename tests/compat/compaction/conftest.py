"""Compaction as clients read it: a broker that cleans promptly, Kafka's Java clients, compacted topics."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.compat.compaction.bulk_clients import BulkClients
from tests.compat.compaction.compacted_topic import CompactedTopic, alter
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, EXTERNAL_BOOTSTRAP, running_broker, unique

# Short intervals of the cleaner and of retention.
PROMPT_CLEANING = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "200"}

_REPORT = "kills during compaction"


@pytest.fixture(scope="session")
def clients(jvm: Jvm) -> BulkClients:
    return BulkClients(jvm)


@pytest.fixture(scope="session")
def cleaning_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a broker that cleans promptly. The config of an external one is changed and restored."""
    if not EXTERNAL_BOOTSTRAP:
        with running_broker(tmp_path_factory.mktemp("cleaning"), PROMPT_CLEANING) as broker:
            yield broker.bootstrap
            broker.stop()
        return
    admin = AdminClient({"bootstrap.servers": EXTERNAL_BOOTSTRAP})
    brokers = [str(number) for number in admin.list_topics(timeout=DEADLINE_S).brokers]
    backoff = "log.cleaner.backoff.ms"
    for number in brokers:
        alter(admin, "broker", number, {backoff: PROMPT_CLEANING[backoff]})
    yield EXTERNAL_BOOTSTRAP
    for number in brokers:
        alter(admin, "broker", number, {backoff: None})


@pytest.fixture
def compacted(
    cleaning_broker: str, clients: BulkClients, request: pytest.FixtureRequest
) -> Iterator[Callable[..., CompactedTopic]]:
    """compacted(partitions, {config: value}): a new topic, deleted after the test."""
    topics: list[CompactedTopic] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> CompactedTopic:
        name = unique(request.node.originalname.removeprefix("test_"))
        topics.append(CompactedTopic.created(cleaning_broker, clients, name, partitions, configs))
        return topics[-1]

    yield create
    for topic in topics:
        topic.delete()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """report(line): print a line at the end of the run."""
    lines = reports(request.config).section(_REPORT)
    return lines.append
