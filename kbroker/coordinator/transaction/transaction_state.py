"""The states of a transactional id."""

from enum import IntEnum


class TransactionState(IntEnum):
    """The values are those of the records in __transaction_state.

    Empty: the transactional id has a producer, and no transaction yet.
        -> Ongoing: partitions are added
        -> PrepareAbort: EndTxn aborts without partitions (transactions version 2)
        -> Empty: another InitProducerId
        -> Dead: the transactional id expires

    Ongoing: partitions are in the transaction.
        -> Ongoing: more partitions are added
        -> PrepareCommit: EndTxn commits
        -> PrepareAbort: EndTxn aborts, the transaction times out, or InitProducerId fences its producer

    PrepareCommit, PrepareAbort: the outcome is decided, and transaction markers are sent to the partitions. Requests
    get CONCURRENT_TRANSACTIONS.
        -> CompleteCommit, CompleteAbort: all markers are written

    CompleteCommit, CompleteAbort: the transaction is over. Transitions as from Empty.

    Dead: the transactional id has expired; its record is a tombstone.

    PrepareEpochFence: Kafka fences a producer in two steps. Here it is one, so no transactional id is in this state.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def state_name(self) -> str:
        """The name in ListTransactions and DescribeTransactions."""
        return STATE_NAMES[self]


STATE_NAMES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
    TransactionState.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}

PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETED = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
# States without an open transaction. A transaction may begin, and the transactional id may expire.
IDLE = COMPLETED | {TransactionState.EMPTY}

VALID_PREVIOUS_STATES = {
    TransactionState.EMPTY: IDLE,
    TransactionState.ONGOING: IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # An abort without partitions does not need the state Ongoing (transactions version 2).
    TransactionState.PREPARE_ABORT: IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: IDLE,
}
