"""Rebuild a table from its compacted topic, in another database, and keep it up to date.

Usage: replicate.py DATABASE [--once], with the broker in KBROKER_BOOTSTRAP

The rows and the offsets up to which they are read are one transaction of the database: after a crash, the next start
continues exactly there. A new database begins with the first record. With --once the program
ends when it is up to date.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

DATABASE = sys.argv[1] if len(sys.argv) > 1 else "replica.db"
BOOTSTRAP = os.environ.get("KBROKER_BOOTSTRAP", "127.0.0.1:9092")
TOPIC = "customers"
SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE IF NOT EXISTS offsets (part INTEGER PRIMARY KEY, next INTEGER NOT NULL);
"""


def apply(database: sqlite3.Connection, records: list[ConsumerRecord]) -> None:
    """Apply records of one partition in one transaction."""
    with database:
        for record in records:
            if record.value is None:
                database.execute("DELETE FROM customers WHERE id = ?", (int(record.key),))
            else:
                row = json.loads(record.value)
                database.execute("REPLACE INTO customers VALUES (:id, :name, :city)", row)
        database.execute("REPLACE INTO offsets VALUES (?, ?)", (records[-1].partition, records[-1].offset + 1))


async def main() -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    database = sqlite3.connect(DATABASE)
    database.executescript(SCHEMA)
    # No group: it reads all partitions, and the database has the offsets.
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest", group_id=None)
    await consumer.start()
    try:
        for part, offset in database.execute("SELECT part, next FROM offsets"):
            consumer.seek(TopicPartition(TOPIC, part), offset)
        behind = await consumer.end_offsets(consumer.assignment())
        while not stopping.is_set():
            for records in (await consumer.getmany(timeout_ms=500)).values():
                apply(database, records)
            if behind and all([await consumer.position(at) >= end for at, end in behind.items()]):
                print(
                    f"up to date, {database.execute('SELECT count(*) FROM customers').fetchone()[0]} rows", flush=True
                )
                behind = {}
                if "--once" in sys.argv:
                    stopping.set()
    finally:
        await consumer.stop()
        database.close()


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (KafkaError, sqlite3.Error) as error:
        sys.exit(f"replicate: {error!r}")  # the next start continues at the stored offsets
