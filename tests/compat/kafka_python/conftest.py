"""kafka-python: clients that are closed after the test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from tests.compat.kafka_python.helpers import Member
from tests.compat.support import unique


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


@pytest.fixture
def topic(admin: KafkaAdminClient, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """topic(partitions, {config: value}): the name of a new topic, which is deleted after the test."""
    created: list[str] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = unique(request.node.originalname.removeprefix("test_"))
        spec = {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}
        admin.create_topics({name: spec})
        admin.wait_for_topics([name])
        created.append(name)
        return name

    yield create
    if created:
        admin.delete_topics(created, raise_errors=False)


@pytest.fixture
def open_client(bootstrap: str, topic: Callable[..., str]) -> Iterator[Callable[..., Any]]:
    """open_client(cls, *args, **settings): a client of the broker under test.

    Clients are closed before topics are deleted: a last commit to a deleted topic is retried forever.
    """
    with ExitStack() as stack:

        def opened(cls: type, *args: Any, **settings: Any) -> Any:
            return stack.enter_context(closing(cls(*args, bootstrap_servers=bootstrap, **settings)))

        yield opened


@pytest.fixture
def producer(open_client: Callable[..., Any]) -> Callable[..., KafkaProducer]:
    return partial(open_client, KafkaProducer)


@pytest.fixture
def consumer(open_client: Callable[..., Any]) -> Callable[..., KafkaConsumer]:
    """A consumer from the beginning, with a short wait for empty fetches."""
    return partial(open_client, KafkaConsumer, auto_offset_reset="earliest", fetch_max_wait_ms=100)


@pytest.fixture
def member(consumer: Callable[..., KafkaConsumer]) -> Iterator[Callable[..., Member]]:
    """member(*topics, **settings): a consumer that polls in a thread until the test ends."""
    members: list[Member] = []

    def start(*topics: str, **settings: Any) -> Member:
        settings = {"heartbeat_interval_ms": 200, "session_timeout_ms": 10_000, **settings}
        members.append(Member(consumer(*topics, **settings)))
        return members[-1]

    yield start
    for running in members:
        running.leave()
