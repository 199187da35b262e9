"""ElectLeaders: elect the preferred leaders of partitions, or leaders that are not in sync (KIP-460).

1: unclean elections, and an error code for the whole response.
"""

from protocol.schema.message import Message, Struct, row


class TopicPartitions(Struct):
    topic: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class ElectLeadersRequest(Message, key=43, kind="request", versions="0-2", flexible="2+", costly=True):
    election_type: int = row("int8", "1+")
    topic_partitions: list[TopicPartitions] | None = row([TopicPartitions], "0+", nullable="0+")
    timeout_ms: int = row("int32", "0+", default=60000)


class PartitionResult(Struct):
    partition_id: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = row("string", "0+")
    partition_result: list[PartitionResult] = row([PartitionResult], "0+")


class ElectLeadersResponse(Message, key=43, kind="response", versions="0-2", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "1+")
    replica_election_results: list[ReplicaElectionResult] = row([ReplicaElectionResult], "0+")
