"""What brokers report of their log directories: the sizes of replicas, and free space."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition, by_topic
from protocol.messages.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)

# A broker that does not respond within this time is probably down.
LOG_DIRS_TIMEOUT_S = 5.0


class LogDirs(NamedTuple):
    """The log directories of one broker, added up.

    `sizes`: the bytes of each replica, by topic and partition. `free_bytes`: the free space of the file systems, None
    if a broker before Kafka 3.3 does not report it (KIP-827); `total_bytes`: their size, or None.
    `is_cordoned`: all of them are (KIP-1066).
    """

    sizes: Mapping[Partition, int]
    free_bytes: int | None
    is_cordoned: bool = False
    total_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())


def describe_log_dirs(
    client: ClusterClient, broker_ids: Iterable[int], partitions: Iterable[Partition] | None = None
) -> dict[int, LogDirs]:
    """Return the log directories by broker id, without the brokers that fail to respond or respond with errors.

    `partitions`: those whose sizes are reported; None for all.
    """
    # Null topics: all partitions.
    topics = None
    if partitions is not None:
        topics = [DescribableLogDirTopic(topic=name, partitions=of) for name, of in by_topic(partitions).items()]
    requests = [(broker, DescribeLogDirsRequest(topics=topics)) for broker in broker_ids]
    found = {}
    for broker, response in client.request_all(requests, DescribeLogDirsResponse, LOG_DIRS_TIMEOUT_S):
        results = [result for result in response.results if not result.error_code]
        if results:
            found[broker] = log_dirs(results)
    return found


def log_dirs(results: Sequence[DescribeLogDirsResult]) -> LogDirs:
    """Return the log directories of a DescribeLogDirs response without errors.

    A replica that moves to another directory has bytes in both.
    """
    sizes: dict[Partition, int] = {}
    for result in results:
        for topic in result.topics:
            for row in topic.partitions:
                partition = (topic.name, row.partition_index)
                sizes[partition] = sizes.get(partition, 0) + row.partition_size

    def known(amounts: Sequence[int]) -> int | None:
        return sum(amounts) if min(amounts) >= 0 else None

    free, total = ([getattr(row, name) for row in results] for name in ("usable_bytes", "total_bytes"))
    return LogDirs(sizes, known(free), all(row.is_cordoned for row in results), known(total))
