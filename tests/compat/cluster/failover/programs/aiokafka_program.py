"""aiokafka with its default settings. Its producer is idempotent only if asked to be, and has acks=1 otherwise."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError
from lines import PACE_S, Commands, CommitTimer, acknowledged, arguments, error, read, say


async def produce(topic: str, settings: dict, commands: Commands) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=ARGUMENTS.bootstrap, **settings)
    await producer.start()
    number = 0

    def delivered(future: asyncio.Future, number: int) -> None:
        if failure := future.exception():
            error(failure)
        else:
            acknowledged(topic, future.result().partition, future.result().offset, number)

    while commands.producing:
        try:
            future = await producer.send(topic, b"%d" % number, partition=number % ARGUMENTS.partitions)
            future.add_done_callback(lambda future, number=number: delivered(future, number))
        except KafkaError as failure:
            error(failure)
        number += 1
        await asyncio.sleep(PACE_S)
    await producer.stop()
    say("sent", topic, number)


async def consume(commands: Commands) -> None:
    consumer = AIOKafkaConsumer(
        *ARGUMENTS.topics, bootstrap_servers=ARGUMENTS.bootstrap, group_id=ARGUMENTS.group, auto_offset_reset="earliest"
    )
    await consumer.start()
    timer, has_read = CommitTimer(), False
    while commands.consuming:
        try:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    has_read = True
                    read(record.topic, record.partition, record.offset, record.value)
            if has_read and timer.is_due():
                await consumer.commit()
                say("commit")
                has_read = False
        except KafkaError as failure:
            error(failure)
    await consumer.stop()


async def main(commands: Commands) -> None:
    settings = ({"enable_idempotence": True}, {})
    producers = [produce(*each, commands) for each in zip(ARGUMENTS.topics, settings, strict=False)]
    await asyncio.gather(consume(commands), *producers)


ARGUMENTS = arguments()
asyncio.run(main(Commands()))
