"""Produce and consume ten records with kafka-python. Usage: produce_consume_kafka_python.py [HOST:PORT] [TOPIC]"""

import sys

from kafka import KafkaConsumer, KafkaProducer

bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
topic = sys.argv[2] if len(sys.argv) > 2 else "examples"

with KafkaProducer(bootstrap_servers=bootstrap, key_serializer=str.encode, value_serializer=str.encode) as producer:
    for number in range(10):
        # The topic is created by the first record. send() returns a future; get() waits for the acknowledgement.
        producer.send(topic, key=f"key-{number % 3}", value=f"value {number}").get(timeout=10)

consumer = KafkaConsumer(
    topic,
    bootstrap_servers=bootstrap,
    group_id=f"{topic}-kafka-python",
    auto_offset_reset="earliest",  # where a new group starts
    enable_auto_commit=False,
    consumer_timeout_ms=10_000,  # ends the loop when no record has arrived for this long
)
for count, record in enumerate(consumer, 1):
    print(f"{record.partition}:{record.offset} {record.key.decode()} = {record.value.decode()}")
    if count == 10:
        break
consumer.commit()
consumer.close()
