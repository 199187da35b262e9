"""The verified partitions of a transactional Produce request (KIP-890). api/transactional_produce.py verifies them."""

from kbroker.common import KafkaError
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode

# (topic name or id, partition index), as in the request.
PartitionKey = tuple[str | bytes, int]


class VerificationError(KafkaError):
    """The coordinator did not confirm that the partition is part of the transaction."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)


class VerifiedPartitions:
    """The result of the verification. `must_verify`: a batch may begin a transaction only with its guard.

    Partitions in which the transaction is open already have neither a guard nor an error.
    """

    __slots__ = ("errors", "guards", "must_verify")

    def __init__(self, must_verify: bool) -> None:
        self.must_verify = must_verify
        self.guards: dict[PartitionKey, VerificationGuard] = {}
        self.errors: dict[PartitionKey, VerificationError] = {}

    def guard_of(self, key: PartitionKey) -> VerificationGuard | None:
        """Return the partition's guard, or None. Raises VerificationError if the verification failed."""
        error = self.errors.get(key)
        if error is not None:
            raise error.with_traceback(None)
        return self.guards.get(key)
