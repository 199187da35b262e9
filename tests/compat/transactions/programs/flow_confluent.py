"""Consume, transform, produce with confluent-kafka, as docs/exactly-once.md says."""

import threading

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition
from stages import Arguments, Stages, give_up

TIMEOUT = 120.0
# librdkafka 2.16 can wait forever for a coordinator that was down, whatever the timeout (its issues 5456 and 5511).
HANGS = 3.0


def main() -> None:
    arguments, stages = Arguments(), Stages()
    common = {
        "bootstrap.servers": arguments.bootstrap,
        "client.id": arguments.transactional_id,
        "socket.timeout.ms": arguments.request_timeout_ms,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 200,
    }
    producer = Producer(
        {
            **common,
            "transactional.id": arguments.transactional_id,
            "transaction.timeout.ms": arguments.transaction_timeout_ms,
            # librdkafka accepts no longer one than the transaction timeout.
            "socket.timeout.ms": min(arguments.request_timeout_ms, arguments.transaction_timeout_ms),
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    consumer = Consumer(
        {
            **common,
            "group.id": arguments.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": arguments.session_timeout_ms,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "range",
            "fetch.wait.max.ms": 500,
            "log_level": 0,
        }
    )
    try:
        producer.init_transactions(TIMEOUT)
    except KafkaException as error:
        give_up(error)
    consumer.subscribe([arguments.source])
    stages.reach("started")
    while True:
        records = [record for record in consumer.consume(20, timeout=0.1) if not record.error()]
        if not records:
            continue
        try:
            transact(producer, consumer, arguments.target, records, stages)
        except KafkaException as error:
            if not (error.args[0].txn_requires_abort() or error.args[0].retriable()):
                give_up(error)
            abort(producer, consumer, error)


def transact(producer: Producer, consumer: Consumer, target: str, records: list[Message], stages: Stages) -> None:
    member = consumer.consumer_group_metadata()
    producer.begin_transaction()
    inputs: dict[int, tuple[int, int]] = {}
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        first, _ = inputs.get(record.partition(), (record.offset(), -1))
        inputs[record.partition()] = first, record.offset()
        ends[record.topic(), record.partition()] = record.offset() + 1
    stages.take(consumer.memberid(), inputs)
    for record in records:
        producer.produce(target, b"done " + record.value(), partition=record.partition())
    stages.reach("sent")
    producer.flush(TIMEOUT)
    stages.reach("produced")
    positions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
    watchdog = threading.Timer(HANGS, give_up, ["send_offsets_to_transaction hangs"])
    watchdog.start()
    try:
        producer.send_offsets_to_transaction(positions, member, HANGS / 2)
    finally:
        watchdog.cancel()
    stages.reach("offsets")
    retried(producer.commit_transaction)
    stages.reach("committed")


def abort(producer: Producer, consumer: Consumer, failure: KafkaException) -> None:
    """Abort, and seek to the committed offsets."""
    try:
        retried(producer.abort_transaction)
        committed = consumer.committed(consumer.assignment(), timeout=TIMEOUT)
    except KafkaException as error:
        give_up(f"{failure}, and then {error}")
    print(f"aborted: {failure}", flush=True)
    for tp in committed:
        if tp.offset < 0:
            tp.offset = OFFSET_BEGINNING
        consumer.seek(tp)


def retried(call, *positional) -> None:  # type: ignore[no-untyped-def]
    while True:
        try:
            return call(*positional, TIMEOUT)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


main()
