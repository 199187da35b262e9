"""EndTxn: commit or abort a producer's transaction (KIP-98).

2: the error PRODUCER_FENCED.
4: the error TRANSACTION_ABORTABLE (KIP-890).
5: transactions v2: the response has the producer's next id and epoch (KIP-890).
"""

from protocol.schema.message import Message, row


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
