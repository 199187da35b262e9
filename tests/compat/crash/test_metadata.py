"""Topics, configs and producer ids when the broker is killed while, or right after, they are created."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from struct import Struct
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient

from protocol.apis import ApiKey
from protocol.framing import encode_frame, encode_request_header
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.schema.codec import decode, encode
from tests.compat.crash.conftest import admin_client, create_topic
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually

ROUNDS = 3


def topics(admin: AdminClient) -> dict[str, int]:
    """Return the number of partitions of each topic whose partitions all have a leader."""
    metadata = admin.list_topics(timeout=DEADLINE_S).topics.values()
    return {t.topic: len(t.partitions) for t in metadata if all(p.leader >= 0 for p in t.partitions.values())}


def config_of(admin: AdminClient, kind: ResourceType, name: str, config: str) -> str:
    resource = ConfigResource(kind, name)
    return admin.describe_configs([resource])[resource].result(DEADLINE_S)[config].value


def set_config(admin: AdminClient, kind: ResourceType, name: str, config: str, value: str) -> None:
    change = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def directories(broker: BrokerProcess, topic: str) -> list[str]:
    return sorted(p.name for p in broker.data_dir.rglob(f"{topic}-*") if p.is_dir())


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_acknowledged_changes_of_topics_and_configs_survive_a_kill(broker, admin, proxy, name):
    broker_config = "message.max.bytes"
    for number in range(ROUNDS):
        names = [f"{name}-{number}-{index}" for index in range(5)]
        new_topics = [NewTopic(topic, 2, 1, config={"retention.ms": f"{1000 + number}000"}) for topic in names]
        for future in admin.create_topics(new_topics).values():
            future.result(DEADLINE_S)
        broker.restart()
        admin = admin_client(proxy)
        assert {topic: topics(admin).get(topic) for topic in names} == dict.fromkeys(names, 2)
        assert config_of(admin, ResourceType.TOPIC, names[0], "retention.ms") == f"{1000 + number}000"

        set_config(admin, ResourceType.TOPIC, names[0], "retention.ms", "7777777")
        set_config(admin, ResourceType.BROKER, "1", broker_config, str(2_000_000 + number))
        admin.create_partitions([NewPartitions(names[0], 5)])[names[0]].result(DEADLINE_S)
        for future in admin.delete_topics(names[1:3]).values():
            future.result(DEADLINE_S)
        broker.restart()
        admin = admin_client(proxy)
        existing = topics(admin)
        assert {topic: existing.get(topic) for topic in names} == dict(zip(names, [5, None, None, 2, 2], strict=True))
        assert config_of(admin, ResourceType.TOPIC, names[0], "retention.ms") == "7777777"
        assert config_of(admin, ResourceType.TOPIC, names[3], "retention.ms") == f"{1000 + number}000"
        assert config_of(admin, ResourceType.BROKER, "1", broker_config) == str(2_000_000 + number)
        for topic in names[1:3]:
            assert directories(broker, topic) == [], "the directories of a deleted topic are removed by a restart"
        for topic in (names[0], names[3]):
            assert directories(broker, topic) == [f"{topic}-{index}" for index in range(existing[topic])]


def journal_size(broker: BrokerProcess) -> int:
    return (broker.data_dir / "coordination" / "coordination.journal").stat().st_size


@pytest.mark.feature("kill -9")
@pytest.mark.client("kafka_python")
@pytest.mark.parametrize("moment", ["journal written", "first directory", "last directory"])
def test_a_topic_is_created_completely_or_not_at_all(broker, proxy, name, moment):
    """The broker is killed while topics are being created, before the response reaches the client."""
    names = [f"{name}-{index}" for index in range(20)]
    admin = admin_client(proxy)
    create_topic(admin, f"{name}-before", 1)
    size = journal_size(broker)
    moments = {
        "journal written": lambda: journal_size(broker) > size,
        "first directory": lambda: directories(broker, names[0]),
        "last directory": lambda: directories(broker, names[-1]),
    }
    proxy.hold_responses()
    futures = admin.create_topics([NewTopic(topic, 3, 1) for topic in names])
    eventually(moments[moment], moment, interval=0.0001)
    broker.kill()
    eventually(lambda: not proxy.connections(), "the end of the dead broker's connections")
    proxy.release_responses()
    broker.start()
    for future in futures.values():
        with pytest.raises(KafkaException):
            future.result(DEADLINE_S)
    with closing(KafkaAdminClient(bootstrap_servers=proxy.address)) as client:
        created = {topic for topic in client.list_topics() if topic in names}
        assert {t: len(d["partitions"]) for t, d in described(client, created).items()} == dict.fromkeys(created, 3)
        for topic in names:
            assert len(directories(broker, topic)) == (3 if topic in created else 0), topic
        for topic in set(names) - created:
            client.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
        client.delete_topics(names)
        assert not set(client.list_topics()) & set(names)


def described(client: KafkaAdminClient, names: set[str]) -> dict[str, dict[str, Any]]:
    descriptions = client.describe_topics(sorted(names)) if names else []
    return {topic["name"]: topic for topic in descriptions}


@pytest.fixture
def request_ids(proxy) -> Iterator[Callable[[int], Iterator[int]]]:
    """request_ids(count): pipelines `count` InitProducerId requests and yields the producer ids."""
    size = Struct(">i")
    opened = []

    def pipeline(count: int) -> Iterator[int]:
        host, _, port = proxy.address.rpartition(":")
        opened.append(socket.create_connection((host, int(port)), DEADLINE_S))
        request = encode(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        for number in range(count):
            opened[-1].sendall(encode_frame(encode_request_header(ApiKey.INIT_PRODUCER_ID, 4, number, "ids"), request))
        stream = opened[-1].makefile("rb")
        try:
            while len(head := stream.read(size.size)) == size.size:
                response = decode(InitProducerIdResponse, stream.read(size.unpack(head)[0]), 4, 5)
                assert response.error_code == 0
                yield response.producer_id
        except ConnectionError:
            return

    yield pipeline
    for connection in opened:
        connection.close()


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_producer_ids_never_repeat(broker, proxy, request_ids):
    """The broker is killed while thousands of ids are allocated, in the middle of a block."""
    ids: list[int] = []
    for _ in range(ROUNDS):
        responses = request_ids(2500)
        ids += [next(responses) for _ in range(1100)]
        broker.kill()
        ids += responses
        broker.start()
    responses = request_ids(10)
    ids += [next(responses) for _ in range(10)]
    assert len(set(ids)) == len(ids)
