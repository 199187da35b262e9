"""Streaming queries while the broker under them is killed by kill -9 and started again."""

from collections import Counter

import pytest
from confluent_kafka import Producer

from tests.compat.spark.helpers import Topics, delivers, load, numbers
from tests.compat.support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.feature("kill -9")]

KILLS = 2
BURST = 6000


class Numbers:
    """An idempotent producer of 0, 1, 2, ... which knows what was acknowledged."""

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
        """Serves the delivery reports that have come; true when there were any."""
        return self._producer.poll(0.01)

    def burst(self):
        """Sends records until the first of them are acknowledged; true when others are still in flight."""
        self.send(BURST)
        eventually(self.poll, "the first acknowledgements of the burst", interval=0)
        return self.in_flight > 0

    def flush(self):
        assert self._producer.flush(60) == 0, f"{self.in_flight} records not acknowledged within 60 s"
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
    stream = Numbers(broker.bootstrap, source, 3)

    reports = []
    for _ in range(KILLS):
        stream.send(BURST)
        stream.flush()
        rows = sum_of_input(to_topic)
        eventually(lambda rows=rows: sum_of_input(to_topic) > rows, "a batch of the query", 60)
        # A quick broker may acknowledge a whole burst before its first report is served: then there is another.
        eventually(stream.burst, "a burst that is acknowledged in part", interval=0)
        broker.kill()
        reports.append((stream.in_flight, to_topic.status["isTriggerActive"]))
        stream.send(100)
        broker.start()
    stream.flush()

    everything = list(range(stream.sent))
    assert sorted(int(m.value()) for m in topics.read(source)) == everything, "records of the idempotent producer"
    delivers(to_files, streams.files, everything)
    eventually(lambda: sum_of_input(to_topic) >= stream.sent, "the end of the topic, reached by the query", 60)
    copied = Counter(numbers(load(spark.read, broker.bootstrap, sink)))
    assert sorted(copied) == everything
    twice = copied.total() - len(everything)
    in_flight = ", ".join(f"{records} in flight{' and a batch of Spark' * batch}" for records, batch in reports)
    with capsys.disabled():
        print(f"\n  kill -9 under two queries: {in_flight}; all {stream.sent} records copied, {twice} of them twice")


def sum_of_input(query):
    """Rows that the query has taken in and delivered; a query that failed fails the test."""
    assert query.isActive, f"the query ended: {query.exception()}"
    return sum(progress["numInputRows"] for progress in query.recentProgress)
