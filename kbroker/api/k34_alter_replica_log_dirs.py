"""AlterReplicaLogDirs (key 34), versions 1 and 2: move replicas to another log directory of this broker (KIP-113).

kbroker has one log directory: it is the only valid target, and each of its replicas is there already. Error codes and
the order of the checks are those of Apache Kafka 4.3.1.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.slices import Steps, in_slices
from protocol.errors import ErrorCode
from protocol.messages.k34_alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

# Kafka's name for a directory that is being filled: the partition, a dot, 32 hexadecimal digits and "-future".
FUTURE_SUFFIX_LENGTH = 40
MAX_NAME_LENGTH = 255


async def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(results=await in_slices(context.slices, _results(services, request)))


def _results(services: Services, request: AlterReplicaLogDirsRequest) -> Steps[list[AlterReplicaLogDirTopicResult]]:
    # If a partition is in several directories, the last one counts.
    targets: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                targets.setdefault(topic.name, {})[index] = directory.path
                yield
            yield
        yield
    results = []
    for name, paths in targets.items():
        partitions = []
        for index, path in paths.items():
            try:
                _check(services, name, index, path)
                code = ErrorCode.NONE
            except KafkaError as error:
                code = error.code
            partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
            yield
        results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    return results


def _check(services: Services, topic: str, index: int, path: str) -> None:
    """Raise KafkaError unless this broker has the partition in this directory."""
    replicas = services.replicas
    if len(f"{topic}-{index}") + FUTURE_SUFFIX_LENGTH > MAX_NAME_LENGTH:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if path != replicas.logs.path:
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND)
    if services.config.get("cordoned.log.dirs"):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    partition = replicas.get(topic, index)
    if partition is None:
        code = replicas.missing_error(topic, index)
        # The error code from before KIP-516, for compatibility.
        not_here = code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE if not_here else code)
    if partition.log.health.offline is not None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
