"""A broker whose cleaner looks for work all the time, Kafka's Java clients in bulk, compacted topics."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient

from tests.compat.compaction.bulk import BulkClients
from tests.compat.compaction.topic import CompactedTopic, alter
from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, OUTSIDE, running_broker, unique

# How often the cleaner, and retention, look for work.
PROMPT = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "200"}

_REPORT = "killed while it compacts"


@pytest.fixture(scope="session")
def clients(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> BulkClients:
    return BulkClients(jvm, tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="session")
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a broker that cleans promptly. Somebody else's is altered, and altered back."""
    if not OUTSIDE:
        with running_broker(tmp_path_factory.mktemp("cleaning"), PROMPT) as broker:
            yield broker.bootstrap
            broker.stop()
        return
    admin = AdminClient({"bootstrap.servers": OUTSIDE})
    brokers = [str(number) for number in admin.list_topics(timeout=DEADLINE_S).brokers]
    backoff = "log.cleaner.backoff.ms"
    for number in brokers:
        alter(admin, "broker", number, {backoff: PROMPT[backoff]})
    yield OUTSIDE
    for number in brokers:
        alter(admin, "broker", number, {backoff: None})


@pytest.fixture
def compacted(
    cleaning: str, clients: BulkClients, request: pytest.FixtureRequest
) -> Iterator[Callable[..., CompactedTopic]]:
    """compacted(partitions, {config: value}): a new topic, deleted after the test."""
    made: list[CompactedTopic] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> CompactedTopic:
        name = unique(request.node.originalname.removeprefix("test_"))
        made.append(CompactedTopic.created(cleaning, clients, name, partitions, configs))
        return made[-1]

    yield create
    for topic in made:
        topic.delete()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """report(line): shown at the end of the run."""
    lines = reports(request.config).section(_REPORT)
    return lines.append
