"""A transaction marker, which a coordinator writes to each partition of a transaction."""

from typing import NamedTuple


class TransactionMarker(NamedTuple):
    """A commit or abort of a producer's transaction, which becomes a control batch of the partition.

    `coordinator_epoch`: the leader epoch of the coordinator's __transaction_state partition; -1 for an abort by an
    administrator. `transaction_version` determines the epoch that the marker must have: below 2 at least that of the
    transaction, from 2 on a newer one (KIP-890), so that a late marker cannot end a later transaction.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
