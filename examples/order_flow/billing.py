"""Bill orders exactly once: retry those that fail, and set aside those that cannot succeed.

Reads `orders`, charges the bank (BANK) over HTTP, and writes `invoices`. KBROKER_BOOTSTRAP names the broker. SIGTERM
ends it after the records of the last poll; after a crash the next start continues.
"""

import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from kbroker.retry import OutgoingRecord, RetryingConsumer, read_policy

BOOTSTRAP = os.environ.get("KBROKER_BOOTSTRAP", "127.0.0.1:9092")
BANK = os.environ.get("BANK", "http://127.0.0.1:8080")
INSTANCE = os.environ.get("INSTANCE", "billing-1")  # another one for each process that runs at the same time


class OrderRejected(Exception):
    """No later attempt can succeed."""


class BankUnavailable(Exception):
    """A later attempt may succeed."""


def charge(order_id: str, amount: int) -> str:
    """Charge the bank, and return its receipt. The bank knows the id, so a repeated request charges nothing."""
    request = urllib.request.Request(
        f"{BANK}/charge", json.dumps({"amount": amount}).encode(), {"Idempotency-Key": order_id}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return str(json.load(response)["receipt"])
    except urllib.error.HTTPError as error:
        if error.code < 500:
            raise OrderRejected(f"the bank says {error.code} {error.reason}") from None
        raise BankUnavailable(f"the bank says {error.code} {error.reason}") from None
    except OSError as error:
        raise BankUnavailable(str(error)) from None


def bill(record: Message) -> Iterator[OutgoingRecord]:
    """Return the invoice of an order. An exception sends the order to the retry topic, or to the dead letters."""
    try:
        order = json.loads(record.value())
        order_id, amount = str(order["id"]), int(order["amount"])
    except (TypeError, ValueError, KeyError) as error:
        raise OrderRejected(f"not an order: {error!r}") from None
    invoice = {"order": order_id, "amount": amount, "receipt": charge(order_id, amount)}
    print(f"billed {order_id}", flush=True)
    yield OutgoingRecord("invoices", key=order_id.encode(), value=json.dumps(invoice).encode())


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    servers = {"bootstrap.servers": BOOTSTRAP}
    policy = read_policy(AdminClient(servers), "orders", group="billing")
    consumer = Consumer(
        {
            **servers,
            "group.id": "billing",
            "group.instance.id": INSTANCE,  # after a crash its partitions are its own at once
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer({**servers, "transactional.id": INSTANCE})  # fences an instance of this name
    consumer.subscribe(policy.topics)
    retrying = RetryingConsumer(consumer, producer, policy, not_retryable=(OrderRejected,), exactly_once=True)
    try:
        while not stopping.is_set():
            # librdkafka 2.16 may never return after the broker was away. SIGALRM ends the process when the group gives
            # up as well (max.poll.interval.ms); start it again.
            signal.alarm(300)
            retrying.poll(bill)
    finally:
        consumer.close()


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        sys.exit(f"billing: {error.args[0]}")  # nothing is lost: the next start continues
