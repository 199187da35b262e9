"""AssignReplicasToDirs: a broker tells the controller in which log directories its replicas are (KIP-858)."""

from protocol.schema.message import Message, Struct, row


class AssignReplicasToDirsRequestPartition(Struct):
    partition_index: int = row("int32", "0+")


class AssignReplicasToDirsRequestTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[AssignReplicasToDirsRequestPartition] = row([AssignReplicasToDirsRequestPartition], "0+")


class AssignReplicasToDirsRequestDirectory(Struct):
    id: bytes = row("uuid", "0+")
    topics: list[AssignReplicasToDirsRequestTopic] = row([AssignReplicasToDirsRequestTopic], "0+")


class AssignReplicasToDirsRequest(Message, key=73, kind="request", versions="0", flexible="0+"):
    broker_id: int = row("int32", "0+")
    broker_epoch: int = row("int64", "0+", default=-1)
    directories: list[AssignReplicasToDirsRequestDirectory] = row([AssignReplicasToDirsRequestDirectory], "0+")


class AssignReplicasToDirsResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class AssignReplicasToDirsResponseTopic(Struct):
    topic_id: bytes = row("uuid", "0+")
    partitions: list[AssignReplicasToDirsResponsePartition] = row([AssignReplicasToDirsResponsePartition], "0+")


class AssignReplicasToDirsResponseDirectory(Struct):
    id: bytes = row("uuid", "0+")
    topics: list[AssignReplicasToDirsResponseTopic] = row([AssignReplicasToDirsResponseTopic], "0+")


class AssignReplicasToDirsResponse(Message, key=73, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    directories: list[AssignReplicasToDirsResponseDirectory] = row([AssignReplicasToDirsResponseDirectory], "0+")
