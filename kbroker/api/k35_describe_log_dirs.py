"""DescribeLogDirs (key 35), versions 1 to 5: how much each partition takes on disk, and how much room there
is.

Null topics means all; partitions that are not here are left out. `offset_lag` is how far a log is behind
the high watermark, which a leader's never is. Total and usable bytes are those of the file system
(KIP-827).
"""

from collections.abc import Mapping

from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


async def handle(
    services: Services, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    directory = services.replicas.logs.path
    result = DescribeLogDirsResult(log_dir=directory, topics=_topics(services, request.topics))
    try:
        result.total_bytes, result.usable_bytes = await services.environment.offload(
            services.environment.disk.usage, directory
        )
    except OSError:
        result = DescribeLogDirsResult(log_dir=directory, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return DescribeLogDirsResponse(results=[result])


def _topics(services: Services, wanted: list[DescribableLogDirTopic] | None) -> list[DescribeLogDirsTopic]:
    found: dict[str, list[DescribeLogDirsPartition]] = {}
    for topic, index in _addresses(services, wanted):
        partition = services.replicas.get(topic, index)
        if partition is not None:
            lag = max(partition.high_watermark - partition.log.log_end_offset, 0)
            found.setdefault(topic, []).append(
                DescribeLogDirsPartition(partition_index=index, partition_size=partition.log.size_bytes, offset_lag=lag)
            )
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in found.items()]


def _addresses(services: Services, wanted: list[DescribableLogDirTopic] | None) -> list[tuple[str, int]]:
    if wanted is None:
        return [(tp.topic, tp.partition) for tp in services.replicas.partitions]
    asked: Mapping[tuple[str, int], None] = dict.fromkeys(
        (topic.topic, index) for topic in wanted for index in topic.partitions
    )
    return list(asked)
