"""A work queue with confluent-kafka: ten tasks, one of which fails at first.

Usage: work_queue_confluent.py [HOST:PORT] [TOPIC]

Any number of workers of the group share the tasks of a partition. A task that is released, or whose worker dies, is
delivered again.
"""

import sys

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer

bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
topic = sys.argv[2] if len(sys.argv) > 2 else "tasks"

producer = Producer({"bootstrap.servers": bootstrap})
for number in range(10):
    producer.produce(topic, value=f"task {number}")
producer.flush(10)

failed: set[bytes] = set()
done = 0
settings = {
    "bootstrap.servers": bootstrap,
    "group.id": f"{topic}-workers",
    "share.acknowledgement.mode": "explicit",
}
with ShareConsumer(settings) as worker:
    worker.subscribe([topic])
    while done < 10:
        for task in worker.poll(1):
            if task.error():
                raise KafkaException(task.error())
            if task.value() == b"task 3" and task.value() not in failed:
                failed.add(task.value())
                print(f"{task.value().decode()} failed, and will be delivered again")
                worker.acknowledge(task, AcknowledgeType.RELEASE)
            else:
                print(f"{task.value().decode()} done")
                worker.acknowledge(task)
                done += 1
        worker.commit_sync()
