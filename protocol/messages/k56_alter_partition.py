"""AlterPartition: the leader of partitions asks the controller to change their in-sync replicas (KIP-497).

2: topic ids instead of names.
3: the broker epochs of the in-sync replicas (KIP-903).
"""

from protocol.schema.message import Message, Struct, row


class BrokerState(Struct):
    broker_id: int = row("int32", "3+")
    broker_epoch: int = row("int64", "3+", default=-1)


class AlterPartitionRequestPartition(Struct):
    partition_index: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    new_isr: list[int] = row(["int32"], "0-2")
    new_isr_with_epochs: list[BrokerState] = row([BrokerState], "3+")
    leader_recovery_state: int = row("int8", "1+")
    partition_epoch: int = row("int32", "0+")


class AlterPartitionRequestTopic(Struct):
    topic_id: bytes = row("uuid", "2+", ignorable=True)
    partitions: list[AlterPartitionRequestPartition] = row([AlterPartitionRequestPartition], "0+")


class AlterPartitionRequest(Message, key=56, kind="request", versions="2-3", flexible="0+"):
    broker_id: int = row("int32", "0+")
    broker_epoch: int = row("int64", "0+", default=-1)
    topics: list[AlterPartitionRequestTopic] = row([AlterPartitionRequestTopic], "0+")


class AlterPartitionResponsePartition(Struct):
    partition_index: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    leader_id: int = row("int32", "0+")
    leader_epoch: int = row("int32", "0+")
    isr: list[int] = row(["int32"], "0+")
    leader_recovery_state: int = row("int8", "1+", ignorable=True)
    partition_epoch: int = row("int32", "0+")


class AlterPartitionResponseTopic(Struct):
    topic_id: bytes = row("uuid", "2+", ignorable=True)
    partitions: list[AlterPartitionResponsePartition] = row([AlterPartitionResponsePartition], "0+")


class AlterPartitionResponse(Message, key=56, kind="response", versions="2-3", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    topics: list[AlterPartitionResponseTopic] = row([AlterPartitionResponseTopic], "0+")
