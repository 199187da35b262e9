"""Publish the changes of a database table to a compacted topic.

Usage: publish.py DATABASE [HOST:PORT]

Triggers write each change of the table `customers` to the table `changes`, in the transaction of the change. This
program sends them in their order, and deletes those that are acknowledged. A crash sends some of them again: readers
see them twice, and have the same table at the end.
"""

import signal
import sqlite3
import sys
import threading
from contextlib import suppress

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError, TopicAlreadyExistsError

DATABASE = sys.argv[1] if len(sys.argv) > 1 else "shop.db"
BOOTSTRAP = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:9092"
TOPIC = "customers"
BATCH = 500
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL, row TEXT);
CREATE TRIGGER IF NOT EXISTS customers_inserted AFTER INSERT ON customers BEGIN
    INSERT INTO changes (id, row) VALUES (new.id, json_object('id', new.id, 'name', new.name, 'city', new.city));
END;
CREATE TRIGGER IF NOT EXISTS customers_updated AFTER UPDATE ON customers BEGIN
    INSERT INTO changes (id) SELECT old.id WHERE old.id <> new.id;
    INSERT INTO changes (id, row) VALUES (new.id, json_object('id', new.id, 'name', new.name, 'city', new.city));
END;
CREATE TRIGGER IF NOT EXISTS customers_deleted AFTER DELETE ON customers BEGIN
    INSERT INTO changes (id) VALUES (old.id);
END;
"""


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
    database.executescript(SCHEMA)
    # Idempotent: what is sent again after a lost response is stored once, and never behind later records.
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True)
    with suppress(TopicAlreadyExistsError):
        KafkaAdminClient(bootstrap_servers=BOOTSTRAP).create_topics({TOPIC: {"configs": {"cleanup.policy": "compact"}}})
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
    except KafkaError as error:
        sys.exit(f"publish: {error}")  # nothing is lost: the next start sends these changes again
