"""A topic whose copies take the time of a plan."""

from confluent_kafka import Producer

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.work import create_topic
from tests.compat.crash.checks import TopicRecords
from tests.compat.support import eventually

RECORD_BYTES = 10_000


class LargeTopic:
    """`sent`: the values of each partition, which must stay as they are."""

    def __init__(self, cluster: Cluster, replicas: list[list[int]], partition_bytes: int) -> None:
        """Create the topic with these replicas of each partition, and fill it."""
        self.name = create_topic(cluster, replicas)
        self.partitions = len(replicas)
        self.sent: list[list[bytes]] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 2})
        errors: list[object] = []
        for partition in range(self.partitions):
            values = [b"%d %d" % (partition, i) + bytes(RECORD_BYTES) for i in range(partition_bytes // RECORD_BYTES)]
            for value in values:
                producer.produce(
                    self.name, value, partition=partition, on_delivery=lambda error, _: errors.append(error)
                )
            eventually(lambda: producer.flush(1) == 0, "the large topic", interval=0, progress=lambda: len(errors))
            self.sent.append(values)
        assert set(errors) == {None}

    def check(self, records: TopicRecords) -> None:
        """Check what was read from the topic: exactly what was sent."""
        found = [[value for _, _, value in part] for part in records]
        assert found == self.sent, f"{self.name} has {list(map(len, found))} records, not the ones that were sent"
