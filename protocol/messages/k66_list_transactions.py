"""ListTransactions: the transactions of a coordinator (KIP-664).

1: filter by duration (KIP-994).
2: filter by a pattern of transactional ids (KIP-1152).
"""

from protocol.schema.message import Message, Struct, row


class ListTransactionsRequest(Message, key=66, kind="request", versions="0-2", flexible="0+"):
    state_filters: list[str] = row(["string"], "0+")
    producer_id_filters: list[int] = row(["int64"], "0+")
    duration_filter: int = row("int64", "1+", default=-1)
    transactional_id_pattern: str | None = row("string", "2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = row("string", "0+")
    producer_id: int = row("int64", "0+")
    transaction_state: str = row("string", "0+")


class ListTransactionsResponse(Message, key=66, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    unknown_state_filters: list[str] = row(["string"], "0+")
    transaction_states: list[TransactionState] = row([TransactionState], "0+")
