"""A member of a group as a program of its own, which a test may kill. It leaves when its standard input ends.

    python -m tests.compat.cluster.groups.member KIND BOOTSTRAP GROUP TOPIC

KIND: `classic` and `consumer` are the two protocols of consumer groups, `share` is a share group. It prints what has
happened before it goes on, one line each: partitions and offsets, and for share groups CLOCK_MONOTONIC in nanoseconds.

    read P O T          a record; T: when the poll has begun that returned it
    acking P O          it is about to be acknowledged
    acked P O T         the response has come
    refused P O ERROR   the acknowledgement has failed, or its outcome is unknown
    assigned P...       the partitions of the member of a consumer group
    fatal ERROR         the client has given up
"""

import os
import select
import sys
import time
from collections.abc import Collection, Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, ShareConsumer, TopicPartition

COMMON = {
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 6000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
PROTOCOLS = {
    "classic": {
        "group.protocol": "classic",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
        # Assignments of other strategies may have user data, with which a group cannot be converted.
        "partition.assignment.strategy": "range",
    },
    "consumer": {"group.protocol": "consumer"},
}


def say(lines: Iterable[str]) -> None:
    if text := "".join(f"{line}\n" for line in lines):
        os.write(1, text.encode())


def is_leaving() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def records_of(messages: Iterable[Message]) -> list[Message]:
    """Return the records. Errors of brokers that cannot be reached pass; others end the member."""
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.fatal() or error.code() == KafkaError._MAX_POLL_EXCEEDED:
            raise KafkaException(error)
    return records


def consume(kind: str, settings: dict[str, str], topic: str) -> None:
    consumer = Consumer(
        {**settings, **COMMON, **PROTOCOLS[kind], "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    assigned: list[int] | None = None
    consumer.subscribe([topic])
    while not is_leaving():
        records = records_of(consumer.consume(500, timeout=0.1))
        now = sorted(tp.partition for tp in consumer.assignment())
        if now != assigned:
            assigned = now
            say([" ".join(["assigned", *map(str, assigned)])])
        say(f"read {record.partition()} {record.offset()} 0" for record in records)
        if records:
            commit(consumer)
    consumer.close()


def commit(consumer: Consumer) -> None:
    """Commit what was read. A commit that fails is made up for by the next one, or the next owner reads again."""
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].fatal():
            raise


def share(settings: dict[str, str], topic: str) -> None:
    consumer = ShareConsumer({**settings, **COMMON, "share.acknowledgement.mode": "explicit"})

    def on_result(offsets: dict[TopicPartition, Collection[int]], error: KafkaException | None) -> None:
        for tp, acked in offsets.items():
            if error is None:
                say(f"acked {tp.partition} {offset} {time.monotonic_ns()}" for offset in acked)
            else:
                say(f"refused {tp.partition} {offset} {error}" for offset in acked)

    consumer.set_acknowledgement_commit_callback(on_result)
    consumer.subscribe([topic])
    while not is_leaving():
        begin_ns = time.monotonic_ns()
        records = records_of(consumer.poll(0.2))
        say(f"read {record.partition()} {record.offset()} {begin_ns}" for record in records)
        for record in records:
            consumer.acknowledge(record)
        say(f"acking {record.partition()} {record.offset()}" for record in records)
        if records:
            consumer.commit_sync(20)
    consumer.close()


def main(kind: str, bootstrap: str, group: str, topic: str) -> int:
    settings = {"bootstrap.servers": bootstrap, "group.id": group}
    try:
        share(settings, topic) if kind == "share" else consume(kind, settings, topic)
    except BaseException as error:
        say([f"fatal {error!r}"])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
