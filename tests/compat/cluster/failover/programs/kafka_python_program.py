"""kafka-python with its default settings. Its producer is idempotent by default."""

import threading
import time
from functools import partial

from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from lines import PACE_S, Commands, CommitTimer, acknowledged, arguments, error, read, say


def produce(topic: str, commands: Commands) -> None:
    producer = KafkaProducer(bootstrap_servers=ARGUMENTS.bootstrap.split(","))
    number = 0

    def delivered(number: int, metadata: object) -> None:
        acknowledged(topic, metadata.partition, metadata.offset, number)

    while commands.producing:
        try:
            future = producer.send(topic, b"%d" % number, partition=number % ARGUMENTS.partitions)
            future.add_callback(partial(delivered, number)).add_errback(error)
        except KafkaError as failure:
            error(failure)
        number += 1
        time.sleep(PACE_S)
    producer.flush()
    say("sent", topic, number)


def consume(commands: Commands) -> None:
    consumer = KafkaConsumer(
        *ARGUMENTS.topics,
        bootstrap_servers=ARGUMENTS.bootstrap.split(","),
        group_id=ARGUMENTS.group,
        auto_offset_reset="earliest",
    )
    timer, has_read = CommitTimer(), False
    while commands.consuming:
        try:
            for records in consumer.poll(timeout_ms=350).values():
                for record in records:
                    has_read = True
                    read(record.topic, record.partition, record.offset, record.value)
            # Otherwise a poll that ends within a rebalance which metadata has caused can lose the assignment.
            if consumer._coordinator.rebalance_in_progress():
                consumer._coordinator.request_rejoin()
            if has_read and timer.is_due():
                consumer.commit()
                say("commit")
                has_read = False
        except KafkaError as failure:
            error(failure)
    consumer.close()


ARGUMENTS, COMMANDS = arguments(), Commands()
threading.Thread(target=produce, args=(ARGUMENTS.topics[0], COMMANDS)).start()
consume(COMMANDS)
