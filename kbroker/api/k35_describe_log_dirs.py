"""DescribeLogDirs (key 35), versions 1 to 5: the sizes of partitions, and the space of the data directory.

- Null topics means all partitions. Partitions that this broker does not have are omitted.
- offset_lag: how far the high watermark is above the log end offset, at least 0; it is 0 on a leader.
- Version 4 adds the total and usable bytes of the file system (KIP-827). Version 5 adds is_cordoned (KIP-1066).
"""

from kbroker.api.context import RequestContext, Services
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

# A broker may have thousands of partitions.
RUNS_IN_TURNS = True


async def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    directory = services.replicas.logs.path
    result = DescribeLogDirsResult(
        log_dir=directory,
        topics=_topics(services, request.topics),
        # kbroker has one directory, so the config contains this one or none.
        is_cordoned=bool(services.config.get("cordoned.log.dirs")),
    )
    try:
        result.total_bytes, result.usable_bytes = await services.environment.offload(
            services.environment.disk.usage, directory
        )
    except OSError:
        result = DescribeLogDirsResult(log_dir=directory, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return DescribeLogDirsResponse(results=[result])


def _topics(services: Services, requested: list[DescribableLogDirTopic] | None) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for topic, index in paced(_partitions(services, requested)):
        partition = services.replicas.get(topic, index)
        if partition is not None:
            lag = max(partition.high_watermark - partition.log.log_end_offset, 0)
            topics.setdefault(topic, []).append(
                DescribeLogDirsPartition(partition_index=index, partition_size=partition.log.size_bytes, offset_lag=lag)
            )
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]


def _partitions(services: Services, requested: list[DescribableLogDirTopic] | None) -> list[tuple[str, int]]:
    """Return the requested partitions without duplicates."""
    if requested is None:
        return [(tp.topic, tp.partition) for tp in services.replicas.partitions]
    partitions: dict[tuple[str, int], None] = {}
    for topic in paced(requested):
        for index in paced(topic.partitions):
            partitions[topic.topic, index] = None
    return list(partitions)
