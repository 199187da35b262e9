"""AddOffsetsToTxn: add the offsets of a group to a producer's transaction (KIP-98).

2: the error PRODUCER_FENCED.
4: the error TRANSACTION_ABORTABLE (KIP-890).
"""

from protocol.schema.message import Message, row


class AddOffsetsToTxnRequest(Message, key=25, kind="request", versions="0-4", flexible="3+"):
    transactional_id: str = row("string", "0+")
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    group_id: str = row("string", "0+")


class AddOffsetsToTxnResponse(Message, key=25, kind="response", versions="0-4", flexible="3+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
