"""Operations on the state of a coordinator partition: what they return, their order, how their records are replayed."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kbroker.common import NO_PRODUCER_ID, KafkaError
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import NO_PRODUCER_EPOCH

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# The offset of a record that is replayed before it is appended.
UNKNOWN_OFFSET = -1

# Called with the response of an operation, or with None and the error.
Respond = Callable[[T | None, KafkaError | None], None]


def ignore(*_: object) -> None:
    """Do nothing."""


class CoordinatorResult(NamedTuple, Generic[T_co]):
    """The result of an operation: records to append, and the response when they are committed and replayed.

    `on_committed` and `on_failed` change state that is not durable (pending states, waiting members); one of them is
    called before the response is sent, also of an operation without records.
    """

    response: T_co
    records: Sequence[Any] = ()
    on_committed: Callable[[], None] = ignore
    on_failed: Callable[[ErrorCode], None] = ignore


class CoordinatorShard(Protocol):
    """The state of one partition of an internal topic. Only `replay` changes its durable part."""

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record."""
        ...

    def decode(self, key: bytes | None, value: bytes | None) -> Any | None:
        """Return a record, or None for one of an unknown type. Called in a thread. Raises MalformedError."""
        ...

    def replay(self, record: Any, offset: int, producer_id: int) -> None:
        """Apply a record, in log order. One with a producer id takes effect when its transaction commits.

        The offset is UNKNOWN_OFFSET if the record is of an ORDERED operation, and not appended yet.
        """
        ...

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker, in log order with the records."""
        ...

    def on_loaded(self) -> None:
        """Called when all records of the partition are replayed, before the first operation."""
        ...

    def on_unloaded(self, error: ErrorCode) -> None:
        """Called when the partition is lost: respond to waiting requests with the error, and discard the state."""
        ...


class LockMode(Enum):
    """Which uncommitted operations on the same key (such as a group id) an operation waits for.

    EXCLUSIVE operations see committed state only: while such a write is in flight every operation on its key waits, in
    order. An ORDERED operation does not wait for the commits of those before it: its records are replayed as soon as
    they are queued, so the next one sees them; the response waits for the commit, also that to an operation without
    records. EXCLUSIVE and ORDERED writes wait for each other. Operations of both modes may take several turns
    (runtime/turns.py). SHARED writes (offset commits) are replayed when they are committed, and are pipelined with one
    another, with ORDERED ones and with the next EXCLUSIVE one. EXCLUSIVE_AFTER_SHARED waits for SHARED writes, too.
    NONE never waits: the state itself rejects an operation while another one is pending.
    """

    NONE = auto()
    SHARED = auto()
    ORDERED = auto()
    EXCLUSIVE = auto()
    EXCLUSIVE_AFTER_SHARED = auto()


# Aliases of the members. Access through the class takes 50 ns longer, and each write needs several.
NO_LOCK = LockMode.NONE
SHARED = LockMode.SHARED
ORDERED = LockMode.ORDERED
EXCLUSIVE = LockMode.EXCLUSIVE
EXCLUSIVE_AFTER_SHARED = LockMode.EXCLUSIVE_AFTER_SHARED


class RecordProducer(NamedTuple):
    """The producer of transactional records. `guard` and `verify` are InternalLog.append_internal's."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    guard: VerificationGuard | None = None
    verify: bool = False


NO_PRODUCER = RecordProducer()
