"""Topics with their offsets and sizes, in few requests to each broker."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.client.admin import MAX_PARTITIONS, MetadataTopic, chunks, describe_log_dirs, describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import EARLIEST, LATEST, offsets_at_brokers
from kbroker.client.requests import Partition


class TopicSnapshot(NamedTuple):
    """A topic. Partitions whose leader does not respond are missing in `begins`, `ends` and `sizes` (bytes)."""

    topic: MetadataTopic
    begins: Mapping[int, int]
    ends: Mapping[int, int]
    sizes: Mapping[int, int]

    @property
    def replication_factor(self) -> int:
        return max((len(row.replica_nodes) for row in self.topic.partitions), default=0)

    @property
    def end(self) -> int:
        """The sum of the log end offsets: it grows by one with each record."""
        return sum(self.ends.values())

    @property
    def records(self) -> int | None:
        """The number of offsets from begin to end. Compaction and transactions leave offsets without a record."""
        counts = [end - self.begins[partition] for partition, end in self.ends.items() if partition in self.begins]
        return sum(counts) if counts else None

    @property
    def size(self) -> int | None:
        """The size of the leaders' logs in bytes."""
        return sum(self.sizes.values()) if self.sizes else None

    @property
    def offline(self) -> int:
        """The number of partitions without a leader."""
        return sum(row.leader_id < 0 for row in self.topic.partitions)


def read_topics(cluster: ClusterClient, names: Sequence[str] | None = None) -> dict[str, TopicSnapshot]:
    """Return topics by name, by default all. Raises BrokerUnreachable if no broker responds."""
    topics = sorted(describe_topics(cluster, names))
    by_leader: dict[int, list[Partition]] = {}
    for topic in topics:
        for row in topic.partitions:
            if row.leader_id >= 0:
                by_leader.setdefault(row.leader_id, []).append((topic.name, row.partition_index))
    figures: list[dict[str, dict[int, int]]] = [{}, {}, {}]
    for leader, led in by_leader.items():
        for chunk in chunks(led, MAX_PARTITIONS):
            for log_dirs in describe_log_dirs(cluster, [leader], chunk).values():
                for (topic_name, partition), size in log_dirs.sizes.items():
                    figures[2].setdefault(topic_name, {})[partition] = size
    for found, timestamp in zip(figures, (EARLIEST, LATEST), strict=False):
        for (_, (topic_name, partition)), offset in offsets_at_brokers(cluster, by_leader, timestamp).items():
            found.setdefault(topic_name, {})[partition] = offset
    return {topic.name: TopicSnapshot(topic, *(found.get(topic.name, {}) for found in figures)) for topic in topics}
