"""Consume, transform, produce with kafka-python, as docs/exactly-once.md says."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kafka import KafkaConsumer, KafkaProducer
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, RetriableError
from kafka.structs import OffsetAndMetadata
from stages import Arguments, Stages, give_up
from transactional_consumer import Batch, TransactionalConsumer

TIMEOUT = 120
# kafka-python 3.0.12 can wait forever for a broker that has died, with Apache Kafka too: after a refused connection it
# finds the new coordinator, and never sends the request again.
HANGS = 20.0
# The time is waited for in many parts, each of which takes longer on a busy machine.
PART_S = 0.1
hangs = HANGS


def main() -> None:
    global hangs
    arguments, stages = Arguments(), Stages()
    hangs = min(HANGS, 1.25 * arguments.request_timeout_ms / 1000)
    common = {
        "bootstrap_servers": arguments.bootstrap,
        "client_id": arguments.transactional_id,
        "request_timeout_ms": arguments.request_timeout_ms,
        "reconnect_backoff_ms": 20,
        "reconnect_backoff_max_ms": 200,
        "retry_backoff_ms": 20,
    }
    producer_settings = {
        **common,
        "transactional_id": arguments.transactional_id,
        "transaction_timeout_ms": arguments.transaction_timeout_ms,
        "linger_ms": 0,
    }
    consumer_settings = {
        **common,
        "group_id": arguments.group,
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": arguments.session_timeout_ms,
        "heartbeat_interval_ms": 200,
        "max_poll_records": 20,
        "partition_assignment_strategy": [RangePartitionAssignor],
        "fetch_max_wait_ms": 500,
    }
    consumer = start_consumer(consumer_settings)
    producer = start_producer(producer_settings)
    consumer.subscribe([arguments.source])
    stages.reach("started")
    inputs = TransactionalConsumer(consumer)
    while True:
        batch = poll(inputs)
        if not batch.records:
            continue
        try:
            transact(producer, batch, arguments.target, stages)
        except KafkaError as error:
            abort(producer, inputs, error)
            # kafka-python 3.0.12 sends the offsets of an aborted transaction with those of the next one.
            producer.close()
            producer = start_producer(producer_settings)


def start_consumer(consumer_settings: dict) -> KafkaConsumer:
    try:
        return KafkaConsumer(**consumer_settings)
    except KafkaError as error:
        # After 30 s, even if only one of several brokers does not respond.
        give_up(repr(error))


def start_producer(producer_settings: dict) -> KafkaProducer:
    try:
        producer = KafkaProducer(**producer_settings)
        producer.init_transactions()
    except KafkaError as error:
        give_up(repr(error))
    return producer


def poll(inputs: TransactionalConsumer) -> Batch:
    while True:
        try:
            # A poll that ends in the middle of a rejoin can leave kafka-python waiting forever.
            return inputs.poll(timeout_ms=350)
        except RetriableError:  # the broker is down
            time.sleep(0.05)


def transact(producer: KafkaProducer, batch: Batch, target: str, stages: Stages) -> None:
    polled, member = batch
    producer.begin_transaction()
    stages.take(member.generation_id, {tp.partition: (part[0].offset, part[-1].offset) for tp, part in polled.items()})
    sent = []
    for tp, records in polled.items():
        sent += [producer.send(target, b"done " + record.value, partition=tp.partition) for record in records]
    stages.reach("sent")
    with watchdog("flush"):
        producer.flush(TIMEOUT)
        for future in sent:
            future.get(TIMEOUT)
    stages.reach("produced")
    positions = {tp: OffsetAndMetadata(records[-1].offset + 1, "", -1) for tp, records in polled.items()}
    with watchdog("send_offsets_to_transaction"):
        producer.send_offsets_to_transaction(positions, member)
    stages.reach("offsets")
    with watchdog("commit_transaction"):
        producer.commit_transaction()
    stages.reach("committed")


@contextmanager
def watchdog(call: str) -> Iterator[None]:
    """Give up if the block does not end."""
    ended = threading.Event()

    def watch() -> None:
        if not any(ended.wait(PART_S) for _ in range(round(hangs / PART_S))):
            give_up(f"{call} hangs")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def abort(producer: KafkaProducer, inputs: TransactionalConsumer, failure: KafkaError) -> None:
    """Abort, and seek to the committed offsets."""
    try:
        producer.abort_transaction()
        inputs.rewind()
    except KafkaError as error:
        give_up(f"{failure!r}, and then {error!r}")
    print(f"aborted: {failure!r}", flush=True)


main()
