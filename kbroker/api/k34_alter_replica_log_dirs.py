"""AlterReplicaLogDirs (key 34), versions 1 and 2: move replicas to another log directory of this broker (KIP-113).

kbroker has one log directory: it is the only valid target, and each of its replicas is there already. Error codes and
the order of the checks are those of Apache Kafka 4.4.0.
"""

from collections.abc import Callable
from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
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


def handle(
    services: Services, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    return _respond(request, partial(_code, services))


def failed_response(
    context: RequestContext, request: AlterReplicaLogDirsRequest, error: KafkaError
) -> AlterReplicaLogDirsResponse:
    return _respond(request, lambda topic, index, path: error.code)


def _respond(
    request: AlterReplicaLogDirsRequest, code_of: Callable[[str, int, str], ErrorCode]
) -> AlterReplicaLogDirsResponse:
    # If a partition is in several directories, the last one counts.
    targets: dict[str, dict[int, str]] = {}
    for directory in paced(request.dirs):
        for topic in paced(directory.topics):
            for index in paced(topic.partitions):
                targets.setdefault(topic.name, {})[index] = directory.path
    response = AlterReplicaLogDirsResponse()
    for name, paths in targets.items():
        partitions = [
            AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code_of(name, index, path))
            for index, path in paced(paths.items())
        ]
        response.results.append(AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions))
    return response


def _code(services: Services, topic: str, index: int, path: str) -> ErrorCode:
    try:
        _check(services, topic, index, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


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
