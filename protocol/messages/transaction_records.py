"""The keys and values of records in __transaction_state, each preceded by its version (int16).

Value 1 is flexible. Its tagged fields are the producer ids and epochs of a rotation, and the transaction version of the
client (KIP-890).
"""

from protocol.schema.message import Message, Struct, row


class TransactionLogKey(Message, kind="data", versions="0", flexible="none"):
    transactional_id: str = row("string", "0+")


class TransactionPartitions(Struct):
    topic: str = row("string", "0+")
    partition_ids: list[int] = row(["int32"], "0+")


class TransactionLogValue(Message, kind="data", versions="0-1", flexible="1+"):
    producer_id: int = row("int64", "0+")
    previous_producer_id: int = row("int64", "1+", tag=0, default=-1, ignorable=True)
    next_producer_id: int = row("int64", "1+", tag=1, default=-1, ignorable=True)
    producer_epoch: int = row("int16", "0+")
    next_producer_epoch: int = row("int16", "1+", tag=3, default=-1, ignorable=True)
    transaction_timeout_ms: int = row("int32", "0+")
    transaction_status: int = row("int8", "0+")
    transaction_partitions: list[TransactionPartitions] | None = row([TransactionPartitions], "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = row("int64", "0+")
    transaction_start_timestamp_ms: int = row("int64", "0+")
    client_transaction_version: int = row("int16", "1+", tag=2, ignorable=True)
