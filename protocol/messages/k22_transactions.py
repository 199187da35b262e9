"""InitProducerId: a producer id and epoch for an idempotent or transactional producer.

3: the current id and epoch, to bump the epoch (KIP-360).
4: the error PRODUCER_FENCED.
5: the error TRANSACTION_ABORTABLE (KIP-890).
6: two-phase commit (KIP-939); unstable, not advertised.

AddPartitionsToTxn: add partitions to a producer's transaction (KIP-98).

2: the error PRODUCER_FENCED.
4: several transactions, and verification only, between brokers (KIP-890).
5: the error TRANSACTION_ABORTABLE; producers of transactions v2 do not send it (KIP-890).

AddOffsetsToTxn: add the offsets of a group to a producer's transaction (KIP-98).

2: the error PRODUCER_FENCED.
4: the error TRANSACTION_ABORTABLE (KIP-890).

EndTxn: commit or abort a producer's transaction (KIP-98).

2: the error PRODUCER_FENCED.
4: the error TRANSACTION_ABORTABLE (KIP-890).
5: transactions v2: the response has the producer's next id and epoch (KIP-890).
"""

from protocol.schema.message import Message, Struct, row


class InitProducerIdRequest(Message, key=22, kind="request", versions="0-6", flexible="2+"):
    transactional_id: str | None = row("string", "0+", nullable="0+")
    transaction_timeout_ms: int = row("int32", "0+")
    producer_id: int = row("int64", "3+", default=-1)
    producer_epoch: int = row("int16", "3+", default=-1)
    enable2_pc: bool = row("bool", "6+")
    keep_prepared_txn: bool = row("bool", "6+")


class InitProducerIdResponse(Message, key=22, kind="response", versions="0-6", flexible="2+"):
    throttle_time_ms: int = row("int32", "0+", ignorable=True)
    error_code: int = row("int16", "0+")
    producer_id: int = row("int64", "0+", default=-1)
    producer_epoch: int = row("int16", "0+")
    ongoing_txn_producer_id: int = row("int64", "6+", default=-1)
    ongoing_txn_producer_epoch: int = row("int16", "6+", default=-1)


class AddPartitionsToTxnTopic(Struct):
    name: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = row("string", "4+")
    producer_id: int = row("int64", "4+")
    producer_epoch: int = row("int16", "4+")
    verify_only: bool = row("bool", "4+")
    topics: list[AddPartitionsToTxnTopic] = row([AddPartitionsToTxnTopic], "4+")


class AddPartitionsToTxnRequest(Message, key=24, kind="request", versions="0-5", flexible="3+"):
    transactions: list[AddPartitionsToTxnTransaction] = row([AddPartitionsToTxnTransaction], "4+")
    v3_and_below_transactional_id: str = row("string", "0-3")
    v3_and_below_producer_id: int = row("int64", "0-3")
    v3_and_below_producer_epoch: int = row("int16", "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = row([AddPartitionsToTxnTopic], "0-3")


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = row("int32", "0+")
    partition_error_code: int = row("int16", "0+")


class AddPartitionsToTxnTopicResult(Struct):
    name: str = row("string", "0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = row([AddPartitionsToTxnPartitionResult], "0+")


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = row("string", "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = row([AddPartitionsToTxnTopicResult], "4+")


class AddPartitionsToTxnResponse(Message, key=24, kind="response", versions="0-5", flexible="3+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = row([AddPartitionsToTxnResult], "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = row([AddPartitionsToTxnTopicResult], "0-3")


class AddOffsetsToTxnRequest(Message, key=25, kind="request", versions="0-4", flexible="3+"):
    transactional_id: str = row("string", "0+")
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    group_id: str = row("string", "0+")


class AddOffsetsToTxnResponse(Message, key=25, kind="response", versions="0-4", flexible="3+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")


class EndTxnRequest(Message, key=26, kind="request", versions="0-5", flexible="3+"):
    transactional_id: str = row("string", "0+")
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    committed: bool = row("bool", "0+")


class EndTxnResponse(Message, key=26, kind="response", versions="0-5", flexible="3+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    producer_id: int = row("int64", "5+", default=-1, ignorable=True)
    producer_epoch: int = row("int16", "5+", default=-1, ignorable=True)
