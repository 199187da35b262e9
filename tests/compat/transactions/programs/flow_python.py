"""Consume, transform, produce with kafka-python, as its documentation says."""

import time

from kafka import KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, RetriableError
from kafka.structs import OffsetAndMetadata
from stages import Arguments, Stages, give_up

TIMEOUT = 30


def main() -> None:
    given, stages = Arguments(), Stages()
    common = {
        "bootstrap_servers": given.bootstrap,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 200,
        "retry_backoff_ms": 20,
    }
    producing = {
        **common,
        "transactional_id": given.transactional_id,
        "transaction_timeout_ms": given.transaction_timeout_ms,
        "linger_ms": 0,
    }
    consumer = KafkaConsumer(
        **common,
        group_id=given.group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=given.session_timeout_ms,
        heartbeat_interval_ms=200,
        max_poll_records=20,
        partition_assignment_strategy=[RangePartitionAssignor],
        fetch_max_wait_ms=50,
    )
    producer = started(producing)
    consumer.subscribe([given.source])
    stages.reach("started")
    while True:
        polled = poll(consumer)
        if not polled:
            continue
        try:
            transact(producer, consumer, given.target, polled, stages)
        except KafkaError as error:
            abort(producer, consumer, error)
            # kafka-python 3.0.12 sends the offsets of an aborted transaction along with those of the next.
            producer.close()
            producer = started(producing)


def started(producing: dict) -> KafkaProducer:
    producer = KafkaProducer(**producing)
    try:
        producer.init_transactions()
    except KafkaError as error:
        give_up(repr(error))
    return producer


def poll(consumer: KafkaConsumer) -> dict:
    try:
        # A poll that ends in the middle of a rejoin can leave kafka-python waiting for ever.
        return consumer.poll(timeout_ms=350)
    except RetriableError:  # the broker is away
        time.sleep(0.05)
        return {}


def transact(producer: KafkaProducer, consumer: KafkaConsumer, target: str, polled: dict, stages: Stages) -> None:
    producer.begin_transaction()
    sent = []
    for tp, records in polled.items():
        sent += [producer.send(target, b"done " + record.value, partition=tp.partition) for record in records]
    stages.reach("sent")
    producer.flush(TIMEOUT)
    for future in sent:
        future.get(TIMEOUT)
    stages.reach("produced")
    positions = {tp: OffsetAndMetadata(records[-1].offset + 1, "", -1) for tp, records in polled.items()}
    producer.send_offsets_to_transaction(positions, consumer.group_metadata())
    stages.reach("offsets")
    producer.commit_transaction()
    stages.reach("committed")


def abort(producer: KafkaProducer, consumer: KafkaConsumer, why: KafkaError) -> None:
    """Back to what the group has committed."""
    try:
        producer.abort_transaction()
        found = {tp: consumer.committed(tp) for tp in consumer.assignment()}
    except KafkaError as error:
        give_up(f"{why!r}, and then {error!r}")
    print(f"aborted: {why!r}", flush=True)
    for tp, offset in found.items():
        consumer.seek(tp, offset or 0)


main()
