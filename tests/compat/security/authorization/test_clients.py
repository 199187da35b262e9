"""Clients with exactly the rights that Kafka's documentation names for them, and with one less.

The errors are those that the same clients report with Apache Kafka 4.4.0.
"""

from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import kafka.errors
import pytest
from confluent_kafka import KafkaError

from tests.compat.security.authorization.case import World
from tests.compat.security.authorization.rows.topics import KNOWN, PRODUCED
from tests.compat.security.authorization.users import PASSWORD, login, only
from tests.compat.support import DEADLINE_S, unique

pytestmark = pytest.mark.feature("security")

PRODUCER, TRANSACTIONAL_PRODUCER = only("WRITE topic"), only("WRITE topic", "WRITE transactional-id")
CONSUMER, CONSUMER_WITHOUT_GROUP = only("READ group", "READ topic"), only("READ topic")
CONSUMER_WITHOUT_TOPIC = only("READ group")


def kafka_python(world: World, user: str) -> dict[str, Any]:
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    names = {"sasl_plain_username": login(user), "sasl_plain_password": PASSWORD}
    return {"bootstrap_servers": world.bootstrap, **sasl, **names}


def librdkafka(world: World, user: str, **more: Any) -> dict[str, Any]:
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "log_level": 0}
    names = {"sasl.username": login(user), "sasl.password": PASSWORD}
    return {"bootstrap.servers": world.bootstrap, **sasl, **names, **more}


@pytest.mark.client("kafka_python")
def test_a_producer_of_kafka_python(world: World) -> None:
    producer = kafka.KafkaProducer(**kafka_python(world, PRODUCER))
    producer.send(PRODUCED, b"x").get(DEADLINE_S)
    producer.close()
    producer = kafka.KafkaProducer(**kafka_python(world, CONSUMER))
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        producer.send(PRODUCED, b"x").get(DEADLINE_S)
    producer.close()


def kafka_python_consumer(world: World, user: str) -> bytes:
    group = f"in.{unique('kafka-python')}"
    settings = {**kafka_python(world, user), "group_id": group, "auto_offset_reset": "earliest"}
    consumer = kafka.KafkaConsumer(KNOWN, **settings)
    try:
        value: bytes = next(consumer).value
        consumer.commit()
        return value
    finally:
        consumer.close(autocommit=False)


@pytest.mark.client("kafka_python")
def test_a_consumer_of_kafka_python(world: World) -> None:
    assert kafka_python_consumer(world, CONSUMER) == b"a"
    with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
        kafka_python_consumer(world, CONSUMER_WITHOUT_GROUP)
    with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
        kafka_python_consumer(world, CONSUMER_WITHOUT_TOPIC)


def librdkafka_delivery(producer: confluent_kafka.Producer) -> int:
    """Return the code of the error of a record; 0 without one."""
    codes: list[int] = []
    producer.produce(PRODUCED, b"x", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    assert producer.flush(DEADLINE_S) == 0
    return codes[0]


@pytest.mark.client("confluent_kafka")
def test_a_producer_of_librdkafka(world: World) -> None:
    assert librdkafka_delivery(confluent_kafka.Producer(librdkafka(world, PRODUCER))) == 0
    refused = confluent_kafka.Producer(librdkafka(world, CONSUMER))
    assert librdkafka_delivery(refused) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    idempotent = confluent_kafka.Producer(librdkafka(world, PRODUCER, **{"enable.idempotence": True}))
    assert librdkafka_delivery(idempotent) == 0


@pytest.mark.client("confluent_kafka")
def test_a_transactional_producer_of_librdkafka(world: World) -> None:
    transactional = {"transactional.id": f"in.{unique('librdkafka')}"}
    producer = confluent_kafka.Producer(librdkafka(world, TRANSACTIONAL_PRODUCER, **transactional))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    assert librdkafka_delivery(producer) == 0
    producer.commit_transaction(DEADLINE_S)
    producer = confluent_kafka.Producer(librdkafka(world, PRODUCER, **transactional))
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.init_transactions(DEADLINE_S)
    assert raised.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def librdkafka_consumer(world: World, user: str, **more: str) -> bytes | int:
    """Return the value of a record, or the code of an error."""
    settings = {"group.id": f"in.{unique('librdkafka')}", "auto.offset.reset": "earliest", **more}
    consumer = confluent_kafka.Consumer(librdkafka(world, user, **settings))
    consumer.subscribe([KNOWN])
    message = consumer.poll(DEADLINE_S)
    assert message is not None
    consumer.close()
    error = message.error()
    return message.value() if error is None else error.code()


@pytest.mark.client("confluent_kafka")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_of_librdkafka(world: World, protocol: str) -> None:
    options = {"group.protocol": protocol}
    assert librdkafka_consumer(world, CONSUMER, **options) == b"a"
    assert librdkafka_consumer(world, CONSUMER_WITHOUT_GROUP, **options) == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert librdkafka_consumer(world, CONSUMER_WITHOUT_TOPIC, **options) == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.client("kafka_tools")
def test_kafkas_tools(world: World, tmp_path: Path, jvm: Any) -> None:
    def options(user: str) -> list[str]:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        jaas = f'{module} required username="{login(user)}" password="{PASSWORD}";'
        file = tmp_path / login(user)
        file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
        return ["--bootstrap-server", world.bootstrap, "--command-config", str(file)]

    jvm.check("kafka-console-producer", *options(PRODUCER), "--topic", PRODUCED, stdin="x\n")
    refused = jvm.run("kafka-console-producer", *options(CONSUMER), "--topic", PRODUCED, stdin="x\n")
    assert "Not authorized to access topics: [in.p]" in refused.out + refused.err
    consumed = ["--topic", KNOWN, "--group", f"in.{unique('java')}", "--from-beginning", "--max-messages", "1"]
    assert jvm.consume(*options(CONSUMER), *consumed).lines == ["a"]
    refused = jvm.run("kafka-console-consumer", *options(CONSUMER_WITHOUT_GROUP), *consumed)
    assert "Not authorized to access group: in.java" in refused.out + refused.err
