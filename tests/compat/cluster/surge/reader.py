"""A consumer of an overload: checks each record, and stays behind as long as it must. A process of its own.

    reader.py BOOTSTRAP TOPIC

A line on standard input is the number of records that the topic has in the end. The output is one JSON object: the
records by producer and partition, and what is wrong with their order.
"""

import json
import sys
import threading

from confluent_kafka import Consumer

ENDS: list[int] = []


def read_command() -> None:
    ENDS.append(int(sys.stdin.readline() or 0))


def main() -> None:
    bootstrap, topic = sys.argv[1:3]
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"reader-{topic}", "auto.offset.reset": "earliest", "log_level": 2}
    )
    consumer.subscribe([topic])
    counts: dict[str, int] = {}
    wrong: list[str] = []
    threading.Thread(target=read_command, daemon=True).start()
    while not ENDS or sum(counts.values()) < ENDS[0]:
        for message in consumer.consume(100, timeout=0.2):
            if message.error():
                wrong.append(str(message.error()))
                continue
            producer, partition, number = message.value()[:64].partition(b";")[0].split()
            key = f"{int(producer)} {int(partition)}"
            if int(number) != counts.get(key, 0) or int(partition) != message.partition():
                wrong.append(f"{key}: {int(number)} instead of {counts.get(key, 0)} at {message.offset()}")
            counts[key] = int(number) + 1
    consumer.close()
    print(json.dumps({"counts": counts, "wrong": wrong}))


main()
