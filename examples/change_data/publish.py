"""Publish the changes of a database table to a compacted topic.

Usage: publish.py DATABASE, with the broker in KBROKER_BOOTSTRAP

The triggers of schema.sql write each change of the table `customers` to the table `changes`. This program sends them in
their order, and deletes those that are acknowledged. A crash sends some of them again: readers see them twice, and have
the same table at the end.
"""

import os
import signal
import sqlite3
import sys
import threading

from kafka import KafkaProducer
from kafka.errors import KafkaError

DATABASE = sys.argv[1] if len(sys.argv) > 1 else "shop.db"
BOOTSTRAP = os.environ.get("KBROKER_BOOTSTRAP", "127.0.0.1:9092")
TOPIC = "customers"
BATCH = 500


def publish(database: sqlite3.Connection, producer: KafkaProducer) -> int:
    """Send the next changes, and return how many they are. Raises KafkaError: then they remain."""
    changes = database.execute("SELECT number, id, row FROM changes ORDER BY number LIMIT ?", (BATCH,)).fetchall()
    # The key is the primary key, so all changes of a row are in one partition. A row that is gone is a tombstone.
    sent = [
        producer.send(TOPIC, key=str(row_id).encode(), value=None if row is None else row.encode())
        for _, row_id, row in changes
    ]
    for future in sent:
        future.get(timeout=120)
    if changes:
        with database:
            database.execute("DELETE FROM changes WHERE number <= ?", (changes[-1][0],))
    return len(changes)


def main() -> None:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    database = sqlite3.connect(DATABASE, timeout=30)
    # Idempotent: what is sent again after a lost response is stored once, and never behind later records.
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True)
    print(f"publishing the changes of {DATABASE}", flush=True)
    try:
        while not stopping.is_set():
            if count := publish(database, producer):
                print(f"published {count} changes", flush=True)
            else:
                stopping.wait(0.2)
    finally:
        producer.close(timeout=10)
        database.close()


if __name__ == "__main__":
    try:
        main()
    except (KafkaError, sqlite3.Error) as error:
        sys.exit(f"publish: {error}")  # nothing is lost: the next start sends these changes again
