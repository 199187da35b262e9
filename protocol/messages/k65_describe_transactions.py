"""DescribeTransactions: the transactions of transactional ids, from their coordinator (KIP-664)."""

from protocol.schema.message import Message, Struct, row


class DescribeTransactionsRequest(Message, key=65, kind="request", versions="0", flexible="0+"):
    transactional_ids: list[str] = row(["string"], "0+")


class TopicData(Struct):
    topic: str = row("string", "0+")
    partitions: list[int] = row(["int32"], "0+")


class TransactionState(Struct):
    error_code: int = row("int16", "0+")
    transactional_id: str = row("string", "0+")
    transaction_state: str = row("string", "0+")
    transaction_timeout_ms: int = row("int32", "0+")
    transaction_start_time_ms: int = row("int64", "0+")
    producer_id: int = row("int64", "0+")
    producer_epoch: int = row("int16", "0+")
    topics: list[TopicData] = row([TopicData], "0+")


class DescribeTransactionsResponse(Message, key=65, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    transaction_states: list[TransactionState] = row([TransactionState], "0+")
