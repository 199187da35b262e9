"""A producer and a consumer are held to their quotas, and others are not (KIP-219)."""

import os
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from kbroker.client.cluster import ClusterClient
from protocol.messages.k48_describe_client_quotas import EntityData
from protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    OpData,
)
from tests.compat.support import EXTERNAL_BOOTSTRAP, running_broker, unique

RATE = 1_000_000
VALUE = os.urandom(1_000)
SECONDS = 4.0


def limit(bootstrap: str, client_id: str) -> None:
    quotas = [OpData(key=name, value=RATE) for name in ("producer_byte_rate", "consumer_byte_rate")]
    entity = EntryData(entity=[EntityData(entity_type="client-id", entity_name=client_id)], ops=quotas)
    host, port = bootstrap.split(":")
    with ClusterClient([(host, int(port))], client_id="quotas") as client:
        response = client.request(AlterClientQuotasRequest(entries=[entity]), AlterClientQuotasResponse)
    assert [entry.error_code for entry in response.entries] == [0]


@pytest.mark.feature("security")
@pytest.mark.skipif(bool(EXTERNAL_BOOTSTRAP), reason="the burst that a broker allows depends on its configs")
def test_clients_are_held_to_their_quotas(tmp_path: Path) -> None:
    with running_broker(tmp_path, {"quota.window.num": "2"}) as broker:
        topic = unique("quotas")
        # Without a quota, in a moment.
        free = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "free", "linger.ms": 5})
        for _ in range(8 * RATE // len(VALUE)):
            free.produce(topic, VALUE)
        assert free.flush(SECONDS * 10) == 0
        limit(broker.bootstrap, "limited")
        acknowledged = consumed = 0

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            nonlocal acknowledged
            acknowledged += len(VALUE) * (error is None)

        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "client.id": "limited",
                "batch.size": 100_000,
                "queue.buffering.max.kbytes": 1_000,
            }
        )
        settings = {"bootstrap.servers": broker.bootstrap, "client.id": "limited", "group.id": topic}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        start = time.monotonic()
        while (elapsed := time.monotonic() - start) < SECONDS:
            try:
                producer.produce(topic, VALUE, on_delivery=on_delivery)
            except BufferError:
                producer.poll(0.01)
            producer.poll(0)
            consumed += sum(len(message) for message in consumer.consume(100, 0) if message.error() is None)
        producer.purge()
        consumer.close()
        # One window is allowed at once.
        most = 1.1 * RATE * (elapsed + 1)
        assert RATE < acknowledged < most
        assert RATE < consumed < most
        broker.stop()
