"""The end of a transaction, as a partition is told of it."""

from typing import NamedTuple


class TransactionMarker(NamedTuple):
    """What becomes one control batch in a partition: a commit or an abort of what a producer has written there.

    `coordinator_epoch` is the leader epoch of the __transaction_state partition that decided it; -1 when an
    administrator did. `transaction_version` says how the epoch is checked: below 2 a marker's epoch may be that of
    the data, from 2 on it is above it (KIP-890), so that a late marker cannot end a later transaction.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
