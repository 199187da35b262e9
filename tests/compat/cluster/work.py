"""Idempotent producers of two clients that send all the time, and what must be true in the end."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster.cluster import Cluster
from tests.compat.crash.background_producers import BackgroundProducer, ConfluentProducer, KafkaPythonProducer
from tests.compat.crash.checks import check_exactly_once, offsets_of, read_topic, wait_for_acknowledgements
from tests.compat.crash.stored_epochs import stored_epoch
from tests.compat.support import DEADLINE_S, Sampler, eventually, unique

# A broker that is paused does not respond, and its successor is found by asking others.
CONFLUENT = {
    "enable.idempotence": True,
    "request.timeout.ms": 3000,
    "socket.timeout.ms": 6000,
    "topic.metadata.refresh.interval.ms": 1000,
}
KAFKA_PYTHON = {"enable_idempotence": True, "request_timeout_ms": 3000, "metadata_max_age_ms": 1000}
# Errors of an admin request while ZooKeeper cannot be reached, or while there is no controller.
UNAVAILABLE = (
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
)
# Seconds between two rounds of one record for each partition. What is tested are elections and sessions, which take
# seconds: more records prove no more, and take the processor from everything else.
PACE_S = 0.1


def create_topic(cluster: Cluster, replicas: list[list[int]], configs: dict[str, str] | None = None) -> str:
    """Create a topic with these replicas of each partition, the first of which is the leader, and return its name."""
    name = unique("cluster")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=configs or {})

    def is_created() -> bool:
        """Try again while ZooKeeper cannot be reached; an earlier attempt may have succeeded."""
        error = admin.create_topics([topic])[name].exception(DEADLINE_S)
        if error is None or error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return True
        assert error.args[0].code() in UNAVAILABLE, error
        return False

    eventually(is_created, f"the topic {name}", interval=0.2)
    cluster.wait_until(
        lambda view: sum(key[0] == name and part.leader >= 0 for key, part in view.partitions.items()) == len(replicas),
        f"every broker knows {name}",
    )
    return name


class Work:
    """The producers of one topic."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._is_stopped = False
        bootstrap = cluster.bootstrap
        self.producers: list[BackgroundProducer] = [
            ConfluentProducer(bootstrap, "confluent", topic, partitions, **CONFLUENT),
            KafkaPythonProducer(bootstrap, "python", topic, partitions, **KAFKA_PYTHON),
        ]

    def start(self) -> None:
        for producer in self.producers:
            producer.pace_s = PACE_S
            producer.start()
        self.wait_for_more()

    def wait_for_more(self, count: int = 10) -> None:
        """Wait until each producer has `count` further acknowledgements in every partition."""
        for producer in self.producers:
            wait_for_acknowledgements(producer, count)

    def grow(self, partitions: int) -> None:
        """Send to more partitions, which the topic already has."""
        for producer in self.producers:
            producer.grow(partitions)
        self._partitions = partitions

    def acknowledged(self) -> int:
        """Return the acknowledgements of the partition that has the fewest."""
        return min(min(producer.ledger.counts) for producer in self.producers)

    def stop(self) -> None:
        """Stop the producers. No record may have failed."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.wait_for_more()
        for producer in self.producers:
            producer.stop()
            assert producer.ledger.failed == {}
            assert producer.ledger.outstanding == 0

    def finish(self) -> None:
        """Stop the producers, and check that each record is stored exactly once, and in order."""
        self.stop()
        self._cluster.wait_until_healthy()
        stored = read_topic(self._cluster.bootstrap, self._topic, self._partitions)
        # On a busy machine librdkafka may have increased its epoch.
        epoch_of = partial(stored_epoch, self._cluster.bootstrap, self._topic)
        for producer in self.producers:
            check_exactly_once(producer.ledger, offsets_of(producer.ledger, stored), epoch_of)

    def abandon(self) -> None:
        for producer in self.producers:
            producer.abandon()


@contextmanager
def working(cluster: Cluster, topic: str, partitions: int) -> Iterator[Work]:
    """Producers that send while the block runs; in the end, everything is checked."""
    work = Work(cluster, topic, partitions)
    try:
        work.start()
        yield work
        work.finish()
    except BaseException:
        work.abandon()
        raise


class GapMeter(Sampler):
    """Measures the longest time in which the slowest partition of any producer got no acknowledgement."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._work = work
        self._count, self._since_s = work.acknowledged(), time.monotonic()

    def sample(self) -> None:
        now = time.monotonic()
        self.longest_s = max(self.longest_s, now - self._since_s)
        if (count := self._work.acknowledged()) > self._count:
            self._count, self._since_s = count, now
