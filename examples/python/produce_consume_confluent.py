"""Produce and consume ten records with confluent-kafka. Usage: produce_consume_confluent.py [HOST:PORT] [TOPIC]"""

import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer

bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
topic = sys.argv[2] if len(sys.argv) > 2 else "examples"


def on_delivery(error: object, record: Message) -> None:
    if error:
        sys.exit(f"not delivered: {error}")


producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
for number in range(10):
    producer.produce(topic, key=f"key-{number % 3}", value=f"value {number}", on_delivery=on_delivery)
producer.flush(10)

consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": f"{topic}-confluent",
        "auto.offset.reset": "earliest",  # where a new group starts
        "enable.auto.commit": False,
    }
)
consumer.subscribe([topic])
count = 0
while count < 10:
    record = consumer.poll(10)
    if record is None:
        sys.exit("no record for 10 s")
    if record.error():
        raise KafkaException(record.error())
    print(f"{record.partition()}:{record.offset()} {record.key().decode()} = {record.value().decode()}")
    count += 1
consumer.commit(asynchronous=False)
consumer.close()
