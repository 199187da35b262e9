"""Idempotent producers that together offer far more than a cluster can take: a process of its own.

    overload.py BOOTSTRAP TOPIC PARTITIONS PRODUCERS BUFFER_KIB FACTOR CALIBRATION_S SECONDS

For CALIBRATION_S all producers send as fast as they can, and the acknowledged bytes are the capacity. For SECONDS they
then offer FACTOR times that, together. A producer whose buffer is full refuses a record, as every client does: that
record counts as offered, and was never sent. In the end the process prints one JSON object.
"""

import json
import sys
import time

from confluent_kafka import KafkaError, Message, Producer

RECORD_BYTES = 32 * 1024
HEADER = b"%d %d %d;"  # producer, partition, number
# Batches of up to 1 MB, five requests in flight for each broker.
SETTINGS = {"enable.idempotence": True, "batch.size": 1_000_000, "log_level": 2}
SLICE_S = 0.05


class OverloadProducer:
    def __init__(self, bootstrap: str, topic: str, partitions: int, buffer_kib: int, number: int) -> None:
        self.sent = [0] * partitions
        self.acknowledged = 0
        self.errors: list[str] = []
        self._topic = topic
        self._number = number
        self._turn = number
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": buffer_kib, **SETTINGS}
        )

    def offer(self, count: int) -> int:
        """Send up to `count` records, and return how many the buffer had room for."""
        for offered in range(count):
            partition = self._turn % len(self.sent)
            value = (HEADER % (self._number, partition, self.sent[partition])).ljust(RECORD_BYTES, b".")
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:
                return offered
            self.sent[partition] += 1
            self._turn += 1
        return count

    def poll(self) -> None:
        self._producer.poll(0)

    def finish(self) -> None:
        self._producer.flush()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(str(error))


def offer(producers: list[OverloadProducer], records_per_s: float, seconds: float) -> tuple[int, int]:
    """Offer records at this rate, and return how many were offered and how many had room."""
    start = time.monotonic()
    offered = accepted = 0
    while (now := time.monotonic()) < start + seconds:
        due = int((now - start) * records_per_s) - offered
        share = -(-due // len(producers))
        for producer in producers:
            accepted += producer.offer(share)
            producer.poll()
        offered += max(0, share) * len(producers)
        time.sleep(max(0.0, SLICE_S - (time.monotonic() - now)))
    return offered, accepted


def main() -> None:
    bootstrap, topic = sys.argv[1:3]
    partitions, count, buffer_kib, factor = map(int, sys.argv[3:7])
    calibration_s, seconds = map(float, sys.argv[7:9])
    producers = [OverloadProducer(bootstrap, topic, partitions, buffer_kib, number) for number in range(count)]
    # Many times more than a machine can take.
    offer(producers, 50_000, calibration_s / 2)
    before = sum(producer.acknowledged for producer in producers)
    start = time.monotonic()
    offer(producers, 50_000, calibration_s / 2)
    capacity = (sum(producer.acknowledged for producer in producers) - before) / (time.monotonic() - start)
    print("calibrated", flush=True)
    start = time.monotonic()
    offered, accepted = offer(producers, factor * capacity, seconds)
    surge_s = time.monotonic() - start
    for producer in producers:
        producer.finish()
    result = {
        "capacity": capacity * RECORD_BYTES,
        "offered": offered * RECORD_BYTES / surge_s,
        "accepted": accepted * RECORD_BYTES / surge_s,
        "sent": [producer.sent for producer in producers],
        "acknowledged": sum(producer.acknowledged for producer in producers),
        "errors": [error for producer in producers for error in producer.errors],
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
