"""A worker of a queue of tasks: it computes the checksums of files. KBROKER_BOOTSTRAP names the broker.

Any number of workers share the tasks, also those of one partition, in a share group (KIP-932). A task is done when its
result is acknowledged by the broker. That of a worker that dies is delivered to another one when its lock expires.
"""

import hashlib
import json
import os
import signal
import sys
import threading

from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, Message, Producer, ShareConsumer

BOOTSTRAP = os.environ.get("KBROKER_BOOTSTRAP", "127.0.0.1:9092")


def result_of(task: Message) -> tuple[str, str]:
    """Return a file's name and checksum. Raises ValueError if there can be none, OSError if it may work later."""
    try:
        path = json.loads(task.value())["file"]
        if not isinstance(path, str):
            raise TypeError("the name of the file is not text")
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"not a task: {error!r}") from None
    with open(path, "rb") as file:
        return path, hashlib.file_digest(file, "sha256").hexdigest()


def work(task: Message, producer: Producer) -> AcknowledgeType:
    """Run a task, and return whether it is done (ACCEPT), is to be tried again (RELEASE), or never will be (REJECT)."""
    attempt = task.delivery_count()
    name = f"{task.topic()}-{task.partition()}@{task.offset()}, attempt {attempt}"
    failures: list[KafkaError] = []
    try:
        print(f"{name}: begins", flush=True)
        path, checksum = result_of(task)
        producer.produce(
            "checksums", checksum, path, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        if producer.flush(60) or failures:  # no result, no acknowledgement
            raise OSError(failures[0] if failures else "the result is not acknowledged")
    except ValueError as error:
        print(f"{name}: rejected: {error}", flush=True)
        return AcknowledgeType.REJECT
    except (OSError, KafkaException) as error:
        print(f"{name}: failed: {error}", flush=True)
        return AcknowledgeType.RELEASE
    print(f"{name}: done, {path}", flush=True)
    return AcknowledgeType.ACCEPT


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
    settings = {"bootstrap.servers": BOOTSTRAP, "group.id": "workers", "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(settings) as consumer:
        consumer.subscribe(["tasks"])
        while not stopping.is_set():
            for task in consumer.poll(0.5):
                if task.error():
                    raise KafkaException(task.error())
                # After SIGTERM the other tasks of the poll go to other workers.
                outcome = AcknowledgeType.RELEASE if stopping.is_set() else work(task, producer)
                consumer.acknowledge(task, outcome)
            for partition, error in consumer.commit_sync().items():
                if error:  # for example, a lock has expired: another worker has these tasks
                    print(f"{partition.topic}-{partition.partition}: not acknowledged: {error}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        sys.exit(f"worker: {error.args[0]}")  # its tasks are delivered to others
