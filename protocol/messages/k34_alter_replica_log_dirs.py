"""AlterReplicaLogDirs: move replicas to other log directories of the same broker (KIP-113).

1: on a quota violation, brokers respond before they throttle.
"""

from protocol.schema.message import Message, Struct, row


class AlterReplicaLogDirTopic(Struct):
    name: str = row("string", "1+")
    partitions: list[int] = row(["int32"], "1+")


class AlterReplicaLogDir(Struct):
    path: str = row("string", "1+")
    topics: list[AlterReplicaLogDirTopic] = row([AlterReplicaLogDirTopic], "1+")


class AlterReplicaLogDirsRequest(Message, key=34, kind="request", versions="1-2", flexible="2+", costly=True):
    dirs: list[AlterReplicaLogDir] = row([AlterReplicaLogDir], "1+")


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = row("int32", "1+")
    error_code: int = row("int16", "1+")


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = row("string", "1+")
    partitions: list[AlterReplicaLogDirPartitionResult] = row([AlterReplicaLogDirPartitionResult], "1+")


class AlterReplicaLogDirsResponse(Message, key=34, kind="response", versions="1-2", flexible="2+"):
    throttle_time_ms: int = row("int32", "1+")
    results: list[AlterReplicaLogDirTopicResult] = row([AlterReplicaLogDirTopicResult], "1+")
