"""InitProducerId: a producer id and epoch for an idempotent or transactional producer.

3: the current id and epoch, to bump the epoch (KIP-360).
4: the error PRODUCER_FENCED.
5: the error TRANSACTION_ABORTABLE (KIP-890).
6: two-phase commit (KIP-939); unstable, not advertised.
"""

from protocol.schema.message import Message, row


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
