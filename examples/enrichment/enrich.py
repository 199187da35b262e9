"""Enrich orders with the customers of a table, exactly once.

Reads `orders` and the compacted topic `customers`, and writes `enriched`. KBROKER_BOOTSTRAP names the broker.
The records of a poll and the offsets behind them are one transaction: kill this program at any moment, start it again,
and each order has one result.
"""

import json
import os
import signal
import sys
import threading
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

BOOTSTRAP = os.environ.get("KBROKER_BOOTSTRAP", "127.0.0.1:9092")
INSTANCE = os.environ.get("INSTANCE", "enrichment-1")  # another one for each process that runs at the same time
BATCH = int(os.environ.get("BATCH", "500"))  # records of a transaction, at most
TIMEOUT_S = int(os.environ.get("TIMEOUT_S", "60"))  # of a transaction
SETTINGS = {
    "bootstrap.servers": BOOTSTRAP,
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
}


class Customers:
    """The table: the last value of each key of a compacted topic. Without a group, since each instance needs it all."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Any] = {}
        self._consumer = Consumer({**SETTINGS, "group.id": f"{INSTANCE}-table", "enable.partition.eof": True})
        topic = self._consumer.list_topics("customers", timeout=30).topics["customers"]
        if topic.error:
            raise KafkaException(topic.error)
        self._consumer.assign([TopicPartition("customers", number, OFFSET_BEGINNING) for number in topic.partitions])
        unread = set(topic.partitions)
        while unread:  # no order is enriched before the whole table is there
            unread -= self._read(timeout_s=1.0)

    def __getitem__(self, key: bytes) -> Any:
        return self._rows.get(key)

    def refresh(self) -> None:
        """Read what is new. Waits for nothing."""
        self._read(timeout_s=0.0)

    def close(self) -> None:
        self._consumer.close()

    def _read(self, timeout_s: float) -> set[int]:
        """Apply records. Returns the partitions whose end is reached."""
        ends = set()
        for record in self._consumer.consume(10_000, timeout_s):
            if error := record.error():
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                ends.add(record.partition())
            elif record.value() is None:  # a tombstone
                self._rows.pop(record.key(), None)
            else:
                self._rows[record.key()] = json.loads(record.value())
        return ends


def enrich(order: Message, customers: Customers) -> bytes:
    """The key of an order is its customer. One that is not in the table is null in the result."""
    return json.dumps({"order": json.loads(order.value()), "customer": customers[order.key()]}).encode()


def rewind(consumer: Consumer) -> None:
    """Continue at the committed offsets, after an aborted transaction."""
    for at in consumer.committed(consumer.assignment(), timeout=30):
        at.offset = at.offset if at.offset >= 0 else OFFSET_BEGINNING
        consumer.seek(at)


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "transactional.id": INSTANCE})
    producer.init_transactions(30)  # fences an older instance of this name, and aborts its open transaction
    customers = Customers()
    # A static member (group.instance.id) has its partitions again at once after a crash.
    consumer = Consumer({**SETTINGS, "group.id": "enrichment", "group.instance.id": INSTANCE})
    consumer.subscribe(["orders"])
    while not stopping.is_set():
        orders = consumer.consume(BATCH, timeout=0.5)
        if error := next((order.error() for order in orders if order.error()), None):
            raise KafkaException(error)
        if not orders:
            continue
        member = consumer.consumer_group_metadata()  # the member that has read these orders
        customers.refresh()
        # librdkafka 2.16 may never return after the broker was away. SIGALRM ends the process then; start it again.
        signal.alarm(TIMEOUT_S)
        producer.begin_transaction()
        try:
            for order in orders:
                producer.produce("enriched", enrich(order, customers), order.key(), partition=order.partition())
            producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), member)
            producer.commit_transaction()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise  # fenced by another instance, or not recoverable in this process
            print(f"aborted: {error.args[0]}", file=sys.stderr)
            producer.abort_transaction()
            rewind(consumer)
        else:
            signal.alarm(0)
            print(f"enriched {len(orders)} orders", flush=True)
    consumer.close()
    customers.close()


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        sys.exit(f"enrich: {error.args[0]}")  # the next start aborts what is open, and reads again
