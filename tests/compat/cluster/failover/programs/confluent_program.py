"""confluent-kafka with its default settings. Its producer is idempotent only if asked to be."""

import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from lines import PACE_S, Commands, CommitTimer, acknowledged, arguments, error, read, say


def produce(topic: str, settings: dict, commands: Commands) -> None:
    producer = Producer({"bootstrap.servers": ARGUMENTS.bootstrap, **settings})
    number = 0

    def delivered(failure: object, message: object, number: int) -> None:
        if failure is not None:
            error(failure)
        else:
            acknowledged(topic, message.partition(), message.offset(), number)

    while commands.producing:
        producer.produce(
            topic,
            b"%d" % number,
            partition=number % ARGUMENTS.partitions,
            on_delivery=lambda failure, message, number=number: delivered(failure, message, number),
        )
        number += 1
        producer.poll(PACE_S)
        time.sleep(PACE_S)
    producer.flush()
    say("sent", topic, number)


def consume(commands: Commands) -> None:
    consumer = Consumer(
        {"bootstrap.servers": ARGUMENTS.bootstrap, "group.id": ARGUMENTS.group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(ARGUMENTS.topics)
    timer, has_read = CommitTimer(), False
    while commands.consuming:
        for message in consumer.consume(500, timeout=0.1):
            if message.error():
                error(message.error())
                continue
            has_read = True
            read(message.topic(), message.partition(), message.offset(), message.value())
        if has_read and timer.is_due():
            try:
                consumer.commit(asynchronous=False)
                say("commit")
            except KafkaException as failure:
                # A rebalance after the read has committed the offsets already.
                if failure.args[0].code() != KafkaError._NO_OFFSET:
                    error(failure)
            has_read = False
    consumer.close()


ARGUMENTS, COMMANDS = arguments(), Commands()
for topic, settings in zip(ARGUMENTS.topics, ({"enable.idempotence": True}, {}), strict=False):
    threading.Thread(target=produce, args=(topic, settings, COMMANDS)).start()
consume(COMMANDS)
