"""Produce and consume ten records with aiokafka. Usage: produce_consume_aiokafka.py [HOST:PORT] [TOPIC]"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            # The topic is created by the first record. send_and_wait() returns when the record is acknowledged.
            await producer.send_and_wait(topic, key=b"key-%d" % (number % 3), value=b"value %d" % number)

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-aiokafka",
        auto_offset_reset="earliest",  # where a new group starts
        enable_auto_commit=False,
    )
    async with consumer:
        for _ in range(10):
            record = await asyncio.wait_for(consumer.getone(), 30)
            print(f"{record.partition}:{record.offset} {record.key.decode()} = {record.value.decode()}")
        await consumer.commit()


bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
topic = sys.argv[2] if len(sys.argv) > 2 else "examples"
asyncio.run(main(bootstrap, topic))
