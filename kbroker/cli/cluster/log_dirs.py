"""DescribeLogDirs to all brokers: the sizes of replicas, and the free space of log directories."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.cli.common.client import send_to_brokers
from kbroker.cli.common.partitions.list_offsets import Partition

# A broker that does not respond within this time is probably down.
TIMEOUT_MS = 5_000


class LogDirs(NamedTuple):
    """The log directories of one broker, added up.

    `sizes`: the bytes of each replica, by topic and partition. `free_bytes`: the free space of the file systems, None
    if a broker before Kafka 3.3 does not report it (KIP-827). `is_cordoned`: all of them are (KIP-1066).
    """

    sizes: Mapping[tuple[str, int], int]
    free_bytes: int | None
    is_cordoned: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())


def describe_log_dirs(
    client: Any, broker_ids: Iterable[int], partitions: Iterable[Partition] | None = None
) -> dict[int, LogDirs]:
    """Return the log directories by broker id, without the brokers that fail to respond or respond with errors.

    `partitions`: those whose sizes are reported; None for all.
    """
    from kafka.protocol.admin import DescribeLogDirsRequest

    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions or ():
        by_topic.setdefault(topic, []).append(partition)
    Topic = DescribeLogDirsRequest.DescribableLogDirTopic
    # Null topics: all partitions.
    topics = None if partitions is None else [Topic(topic=name, partitions=of) for name, of in by_topic.items()]
    requests = [(broker, DescribeLogDirsRequest(topics=topics)) for broker in broker_ids]
    found = {}
    for broker, response in send_to_brokers(client, requests, TIMEOUT_MS):
        results = [result.to_dict() for result in response.results if not result.error_code]
        if results:
            found[broker] = log_dirs(results)
    return found


def log_dirs(results: Sequence[Mapping[str, Any]]) -> LogDirs:
    """Return the log directories of a DescribeLogDirs response without errors.

    A replica that moves to another directory has bytes in both.
    """
    sizes: dict[tuple[str, int], int] = {}
    for result in results:
        for topic in result["topics"]:
            for row in topic["partitions"]:
                partition = (topic["name"], row["partition_index"])
                sizes[partition] = sizes.get(partition, 0) + row["partition_size"]
    free = [result.get("usable_bytes", -1) for result in results]
    is_cordoned = all(result.get("is_cordoned") for result in results)
    return LogDirs(sizes, sum(free) if min(free) >= 0 else None, is_cordoned)
