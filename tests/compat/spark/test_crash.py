"""Streaming queries while their broker is killed with kill -9 and restarted."""

from collections import Counter

import pytest
from confluent_kafka import Producer

from tests.compat.spark.helpers import Topics, load, numbers, wait_for_numbers
from tests.compat.support import DEADLINE_S, eventually

pytestmark = [pytest.mark.spark, pytest.mark.feature("kill -9")]

KILLS = 2
BURST = 6000


class NumberProducer:
    """An idempotent producer of 0, 1, 2, ..., which counts acknowledgements."""

    def __init__(self, bootstrap, topic, partitions):
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
        self._topic = topic
        self._partitions = partitions
        self.sent = 0
        self.acknowledged = 0
        self.errors = []

    @property
    def in_flight(self):
        return self.sent - self.acknowledged

    def send(self, count):
        for number in range(self.sent, self.sent + count):
            partition = number % self._partitions
            self._producer.produce(self._topic, str(number), partition=partition, on_delivery=self._delivered)
        self.sent += count

    def poll(self):
        """Run delivery callbacks; return whether there were any."""
        return self._producer.poll(0.01)

    def burst(self):
        """Send records, wait for the first acknowledgement, and return whether others are still in flight."""
        self.send(BURST)
        eventually(self.poll, "the first acknowledgements of the burst", interval=0)
        return self.in_flight > 0

    def flush(self):
        assert self._producer.flush(DEADLINE_S) == 0, f"{self.in_flight} records not acknowledged"
        assert self.errors == []

    def _delivered(self, error, _):
        self.acknowledged += not error
        self.errors += [error] if error else []


def test_queries_survive_kill_9_and_deliver_everything(spark, broker, streams, capsys):
    topics = Topics(broker.bootstrap, "kill")
    source, sink = topics.create(partitions=3), topics.create(partitions=2)
    frame = load(spark.readStream, broker.bootstrap, source, startingOffsets="earliest").select("value")
    frames = load(spark.readStream, broker.bootstrap, source, startingOffsets="earliest", maxOffsetsPerTrigger=2000)
    to_files = streams.to_files(frame, checkpoint="to-files")
    to_topic = streams.to_topic(frames.select("value"), broker.bootstrap, sink, checkpoint="to-topic")
    producer = NumberProducer(broker.bootstrap, source, 3)

    reports = []
    for _ in range(KILLS):
        producer.send(BURST)
        producer.flush()
        rows = count_input_rows(to_topic)
        eventually(lambda rows=rows: count_input_rows(to_topic) > rows, "a batch of the query")
        # A fast broker may acknowledge a whole burst before the first callback; then another one is sent.
        eventually(producer.burst, "a burst of which only a part is acknowledged", interval=0)
        broker.kill()
        reports.append((producer.in_flight, to_topic.status["isTriggerActive"]))
        producer.send(100)
        broker.start()
    producer.flush()

    all_numbers = list(range(producer.sent))
    assert sorted(int(m.value()) for m in topics.read(source)) == all_numbers, "records of the idempotent producer"
    wait_for_numbers(to_files, streams.files, all_numbers)
    eventually(lambda: count_input_rows(to_topic) >= producer.sent, "the end of the topic, reached by the query")
    copied = Counter(numbers(load(spark.read, broker.bootstrap, sink)))
    assert sorted(copied) == all_numbers
    duplicates = copied.total() - len(all_numbers)
    in_flight = ", ".join(f"{records} in flight{' and a batch of Spark' * batch}" for records, batch in reports)
    with capsys.disabled():
        print(
            f"\n  kill -9 under two queries: {in_flight}; all {producer.sent} records copied, {duplicates} duplicates"
        )


def count_input_rows(query):
    """Return the number of rows that the query has processed; fail if the query has failed."""
    assert query.isActive, f"the query ended: {query.exception()}"
    return sum(progress["numInputRows"] for progress in query.recentProgress)
