"""Unchanged clients whose view has a batch that cannot be filtered: they report it, and can read what is behind it."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.errors import MessageSizeTooLargeError

from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.records.batch import build_batch
from protocol.records.compression import ZSTD
from tests.compat.broker_connection import BrokerConnection
from tests.compat.queues.stories import create
from tests.compat.support import DEADLINE_S, eventually, need_own_broker

pytestmark = [pytest.mark.compat, pytest.mark.feature("queues")]

NOW = 1_760_000_000_000
RECORDS = 280


def produce(bootstrap: str, topic: str, values: list[bytes], tag: bytes) -> None:
    batch = bytes(build_batch([(NOW, None, value, ((b"TAGS", tag),)) for value in values], codec=ZSTD))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    connection = BrokerConnection(bootstrap)
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[data])
    response = connection.request(request, 9, ProduceResponse)
    connection.close()
    assert response.responses[0].partition_responses[0].error_code == 0


@pytest.fixture
def view(bootstrap: str, name: str) -> str:
    """A view with a record, a batch of 280 MB that decompresses from 12 KB and has no selected record, and a record."""
    need_own_broker()
    create(bootstrap, name)
    create(bootstrap, f"{name}.view", -1, kbroker__view__of=name, kbroker__view__filter="paid")
    produce(bootstrap, name, [b"before"], b"paid")
    produce(bootstrap, name, [bytes(1_000_000)] * RECORDS, b"open")
    produce(bootstrap, name, [b"after"], b"paid")
    return f"{name}.view"


@pytest.mark.client("kafka_python")
def test_kafka_python(bootstrap: str, view: str) -> None:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    partition = PythonPartition(view, 0)
    consumer.assign([partition])
    values: list[bytes] = []

    def read(count: int) -> Callable[[], bool]:
        def has_read() -> bool:
            for records in consumer.poll(200).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        return has_read

    eventually(read(1), "the record before the batch")
    with pytest.raises(MessageSizeTooLargeError):
        eventually(read(2), "an error")
    consumer.seek(partition, 1 + RECORDS)
    eventually(read(2), "the record after the batch")
    consumer.close()
    assert values == [b"before", b"after"]


@pytest.mark.client("confluent_kafka")
def test_confluent_kafka(bootstrap: str, view: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": view, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(view, 0, 0)])

    def read() -> bytes:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error():
            raise KafkaException(message.error())
        return bytes(message.value())

    assert read() == b"before"
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        read()
    consumer.seek(TopicPartition(view, 0, 1 + RECORDS))
    assert read() == b"after"
    consumer.close()


@pytest.mark.client("aiokafka")
def test_aiokafka(bootstrap: str, view: str, caplog: pytest.LogCaptureFixture) -> None:
    """It logs errors of a fetch that it does not know, and repeats the fetch."""

    async def run() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioPartition(view, 0)])
        assert (await consumer.getone()).value == b"before"
        while not any("MessageSizeTooLargeError" in record.getMessage() for record in caplog.records):
            assert await consumer.getmany(timeout_ms=200) == {}
        consumer.seek(AioPartition(view, 0), 1 + RECORDS)
        assert (await consumer.getone()).value == b"after"
        await consumer.stop()

    with caplog.at_level(logging.WARNING, "aiokafka"):
        asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
