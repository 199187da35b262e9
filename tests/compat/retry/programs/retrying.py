"""Processes a topic with retries: CLIENT BOOTSTRAP TOPIC GROUP OUTPUT MARKER [exactly-once].

Values that begin with `bad` fail always, with `once` at their first delivery. `kill` kills the process (kill -9) if the
file MARKER does not exist. The value of each record that succeeds is produced to OUTPUT. The members are static, so
that a process which was killed rejoins at once.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kbroker.retry import AsyncRetryingConsumer, OutgoingRecord, RetryingConsumer, read_policy, read_policy_async

client, bootstrap, topic, group, output = sys.argv[1:6]
marker = Path(sys.argv[6])
exactly_once = sys.argv[7:] == ["exactly-once"]
isolation = "read_committed" if exactly_once else "read_uncommitted"


def process(source: str, value: bytes) -> list[OutgoingRecord]:
    if value.startswith(b"bad") or (value.startswith(b"once") and source == topic):
        raise ValueError(f"cannot process {value.decode()}")
    if value == b"kill" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [OutgoingRecord(output, value)]


def kafka_python() -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient

    policy = read_policy(KafkaAdminClient(bootstrap_servers=bootstrap), topic, group)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=isolation,
        group_instance_id="1",
        max_poll_records=4,
    )
    consumer.subscribe(policy.topics)
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=group if exactly_once else None)
    RetryingConsumer(consumer, producer, policy, exactly_once=exactly_once).run(
        lambda record: process(record.topic, record.value)
    )


def confluent_kafka() -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

    policy = read_policy(AdminClient({"bootstrap.servers": bootstrap}), topic, group)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "group.instance.id": "1",
        }
    )
    consumer.subscribe(policy.topics)
    settings = {"transactional.id": group} if exactly_once else {"enable.idempotence": True}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    RetryingConsumer(consumer, producer, policy, exactly_once=exactly_once).run(
        lambda message: process(message.topic(), message.value())
    )


async def aiokafka() -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    policy = await read_policy_async(admin, topic, group)
    await admin.close()
    consumer = AIOKafkaConsumer(
        *policy.topics,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level=isolation,
        group_instance_id="1",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=group if exactly_once else None)
    await consumer.start()
    await producer.start()

    async def handler(record: Any) -> list[OutgoingRecord]:
        return process(record.topic, record.value)

    await AsyncRetryingConsumer(consumer, producer, policy, exactly_once=exactly_once).run(handler)


if client == "aiokafka":
    asyncio.run(aiokafka())
else:
    {"kafka_python": kafka_python, "confluent_kafka": confluent_kafka}[client]()
