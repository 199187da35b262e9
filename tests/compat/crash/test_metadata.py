"""Topics, configs and producer ids when the broker is killed right after, or while, they are made."""

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
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.schema.codec import decode, encode
from tests.compat.crash.conftest import connected, create_topic
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually

ROUNDS = 3


def topics(admin: AdminClient) -> dict[str, int]:
    """Names of the topics whose partitions all have a leader, with the count of these."""
    found = admin.list_topics(timeout=DEADLINE_S).topics.values()
    return {t.topic: len(t.partitions) for t in found if all(p.leader >= 0 for p in t.partitions.values())}


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
def test_what_was_answered_about_topics_and_configs_is_so_after_a_kill(broker, admin, line, name):
    broker_config = "message.max.bytes"
    for number in range(ROUNDS):
        made = [f"{name}-{number}-{index}" for index in range(5)]
        wanted = [NewTopic(topic, 2, 1, config={"retention.ms": f"{1000 + number}000"}) for topic in made]
        for answer in admin.create_topics(wanted).values():
            answer.result(DEADLINE_S)
        broker.restart()
        admin = connected(line)
        assert {topic: topics(admin).get(topic) for topic in made} == dict.fromkeys(made, 2)
        assert config_of(admin, ResourceType.TOPIC, made[0], "retention.ms") == f"{1000 + number}000"

        set_config(admin, ResourceType.TOPIC, made[0], "retention.ms", "7777777")
        set_config(admin, ResourceType.BROKER, "1", broker_config, str(2_000_000 + number))
        admin.create_partitions([NewPartitions(made[0], 5)])[made[0]].result(DEADLINE_S)
        for answer in admin.delete_topics(made[1:3]).values():
            answer.result(DEADLINE_S)
        broker.restart()
        admin = connected(line)
        found = topics(admin)
        assert {topic: found.get(topic) for topic in made} == dict(zip(made, [5, None, None, 2, 2], strict=True))
        assert config_of(admin, ResourceType.TOPIC, made[0], "retention.ms") == "7777777"
        assert config_of(admin, ResourceType.TOPIC, made[3], "retention.ms") == f"{1000 + number}000"
        assert config_of(admin, ResourceType.BROKER, "1", broker_config) == str(2_000_000 + number)
        for topic in made[1:3]:
            assert directories(broker, topic) == [], "the files of a deleted topic are gone after a restart"
        for topic in (made[0], made[3]):
            assert directories(broker, topic) == [f"{topic}-{index}" for index in range(found[topic])]


def journal_size(broker: BrokerProcess) -> int:
    return (broker.data_dir / "coordination" / "coordination.journal").stat().st_size


@pytest.mark.feature("kill -9")
@pytest.mark.client("kafka_python")
@pytest.mark.parametrize("moment", ["when it is decided", "at the first file", "at the last file"])
def test_a_topic_is_there_as_a_whole_or_not_at_all(broker, line, name, moment):
    """Killed before the answer is seen, while topics are being made."""
    made = [f"{name}-{index}" for index in range(20)]
    admin = connected(line)
    create_topic(admin, f"{name}-before", 1)
    size = journal_size(broker)
    moments = {
        "when it is decided": lambda: journal_size(broker) > size,
        "at the first file": lambda: directories(broker, made[0]),
        "at the last file": lambda: directories(broker, made[-1]),
    }
    line.hold()
    answers = admin.create_topics([NewTopic(topic, 3, 1) for topic in made])
    eventually(moments[moment], moment, interval=0.0001)
    broker.kill()
    eventually(lambda: not line.connections(), "the end of the dead broker's connections")
    line.release()
    broker.start()
    for answer in answers.values():
        with pytest.raises(KafkaException):
            answer.result(DEADLINE_S)
    with closing(KafkaAdminClient(bootstrap_servers=line.address)) as client:
        there = {topic for topic in client.list_topics() if topic in made}
        assert {t: len(d["partitions"]) for t, d in described(client, there).items()} == dict.fromkeys(there, 3)
        for topic in made:
            assert len(directories(broker, topic)) == (3 if topic in there else 0), topic
        for topic in set(made) - there:
            client.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}})
        client.delete_topics(made)
        assert not set(client.list_topics()) & set(made)


def described(client: KafkaAdminClient, names: set[str]) -> dict[str, dict[str, Any]]:
    found = client.describe_topics(sorted(names)) if names else []
    return {topic["name"]: topic for topic in found}


@pytest.fixture
def ask_ids(line) -> Iterator[Callable[[int], Iterator[int]]]:
    """ask_ids(count): producer ids for so many requests that are sent at once, as far as they are answered."""
    size = Struct(">i")
    opened = []

    def ask(count: int) -> Iterator[int]:
        host, _, port = line.address.rpartition(":")
        opened.append(socket.create_connection((host, int(port)), DEADLINE_S))
        request = encode(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        for number in range(count):
            opened[-1].sendall(encode_frame(encode_request_header(ApiKey.INIT_PRODUCER_ID, 4, number, "ids"), request))
        answers = opened[-1].makefile("rb")
        try:
            while len(head := answers.read(size.size)) == size.size:
                answer = decode(InitProducerIdResponse, answers.read(size.unpack(head)[0]), 4, 5)
                assert answer.error_code == 0
                yield answer.producer_id
        except ConnectionError:
            return

    yield ask
    for one in opened:
        one.close()


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_producer_ids_never_repeat(broker, line, ask_ids):
    """Killed while thousands of ids are being given out, in the middle of a block of them."""
    given: list[int] = []
    for _ in range(ROUNDS):
        asked = ask_ids(2500)
        given += [next(asked) for _ in range(1100)]
        broker.kill()
        given += asked
        broker.start()
    asked = ask_ids(10)
    given += [next(asked) for _ in range(10)]
    assert len(set(given)) == len(given)
