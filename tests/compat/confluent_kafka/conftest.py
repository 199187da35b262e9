"""confluent-kafka (librdkafka): clients that are closed after the test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.support import DEADLINE_S, eventually, unique


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(admin: AdminClient, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """topic(partitions, {config: value}): the name of a new topic, which is deleted after the test."""
    created: list[str] = []

    def create(partitions: int = 1, configs: dict[str, str] | None = None) -> str:
        name = unique(request.node.originalname.removeprefix("test_"))
        admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})])[name].result(DEADLINE_S)
        created.append(name)
        eventually(lambda: exists(admin, name, partitions), f"the new topic {name} in the metadata")
        return name

    yield create
    for name, deleted in (admin.delete_topics(created) if created else {}).items():
        assert deleted.exception(DEADLINE_S) is None, f"deleting {name}"


def exists(admin: AdminClient, name: str, partitions: int) -> bool:
    """Return whether every partition of the topic has a leader."""
    metadata = admin.list_topics(timeout=DEADLINE_S).topics.get(name)
    if metadata is None or metadata.error or len(metadata.partitions) != partitions:
        return False
    return all(partition.leader >= 0 for partition in metadata.partitions.values())


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Callable[..., Producer]]:
    """producer({setting: value}); retries keep the order only if it is idempotent."""
    producers: list[Producer] = []

    def create(settings: dict[str, Any] | None = None) -> Producer:
        producers.append(Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **(settings or {})}))
        return producers[-1]

    yield create
    for client in producers:
        client.purge()
        client.flush(5)


@pytest.fixture
def consumer(bootstrap: str, topic: Callable[..., str], group: str) -> Iterator[Callable[..., Consumer]]:
    """consumer({setting: value}): a consumer of the test's group, from the beginning, with frequent heartbeats."""
    consumers: list[Consumer] = []

    def create(settings: dict[str, Any] | None = None) -> Consumer:
        defaults = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 100,
        }
        consumers.append(Consumer({**defaults, **(settings or {})}))
        return consumers[-1]

    yield create
    for client in consumers:
        client.close()
