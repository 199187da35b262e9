"""Operations on the state of a coordinator partition: what they return, their order, how their records are replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kbroker.common import NO_PRODUCER_ID, KafkaError
from kbroker.runtime.turns import yield_if_due
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import NO_PRODUCER_EPOCH

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Called with the response of an operation, or with None and the error.
Respond = Callable[[T | None, KafkaError | None], None]


def ignore(*_: object) -> None:
    """Do nothing."""


class CoordinatorResult(NamedTuple, Generic[T_co]):
    """The result of an operation: records to append, and the response when they are committed and replayed.

    `on_committed` and `on_failed` change state that is not durable (pending states, waiting members); one of them is
    called before the response is sent. An operation without records takes effect immediately.
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
        """Apply a committed record, in log order. One with a producer id takes effect when its transaction commits."""
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

    Operations only see committed state. So while an EXCLUSIVE write is in flight every operation on its key waits, in
    order. Such an operation may take several turns (runtime/turns.py). SHARED writes (offset commits) are pipelined
    with one another and with the next EXCLUSIVE one. EXCLUSIVE_AFTER_SHARED waits for SHARED writes, too. NONE never
    waits: the state itself rejects an operation while another one is pending.
    """

    NONE = auto()
    SHARED = auto()
    EXCLUSIVE = auto()
    EXCLUSIVE_AFTER_SHARED = auto()


# Aliases of the members. Access through the class takes 50 ns longer, and each write needs several.
NO_LOCK = LockMode.NONE
SHARED = LockMode.SHARED
EXCLUSIVE_AFTER_SHARED = LockMode.EXCLUSIVE_AFTER_SHARED


class KeyLock:
    """The lock of one key. It exists only while a write is in flight, an exclusive operation runs, or one waits."""

    __slots__ = ("_exclusive", "_is_releasing", "_shared", "_waiting")

    def __init__(self) -> None:
        self._exclusive = False
        self._shared = 0
        self._is_releasing = False
        self._waiting: deque[tuple[LockMode, Callable[[], None]]] = deque()

    @property
    def is_idle(self) -> bool:
        return not (self._exclusive or self._shared or self._waiting or self._is_releasing)

    def must_wait(self, mode: LockMode) -> bool:
        """Return whether an operation has to wait for others."""
        return bool(self._waiting) or not self._admits(mode)

    def wait(self, operation: Callable[[], None], mode: LockMode) -> None:
        """Call an operation that has to wait after those that it waits for."""
        self._waiting.append((mode, operation))

    def acquire(self, mode: LockMode) -> None:
        """Acquire the lock for an exclusive operation that runs next, or a shared one whose records are in flight."""
        if mode is SHARED:
            self._shared += 1
        else:
            self._exclusive = True

    def release(self, mode: LockMode) -> None:
        """Release the lock: there are no records, or they are committed or have failed. Runs operations that waited."""
        if mode is SHARED:
            self._shared -= 1
        else:
            self._exclusive = False
        if self._is_releasing:
            # One of the operations below has released it again. Thousands may wait, so they do not call one another.
            return
        self._is_releasing = True
        try:
            while self._waiting and self._admits(self._waiting[0][0]):
                self._waiting.popleft()[1]()
                if mode is not SHARED:
                    # An exclusive operation ends in a turn of its own. A shared one may end in the turn of any request.
                    yield_if_due()
        finally:
            self._is_releasing = False

    def _admits(self, mode: LockMode) -> bool:
        return not self._exclusive and not (mode is EXCLUSIVE_AFTER_SHARED and self._shared)


class RecordProducer(NamedTuple):
    """The producer of transactional records. `guard` and `verify` are InternalLog.append_internal's."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    guard: VerificationGuard | None = None
    verify: bool = False


NO_PRODUCER = RecordProducer()
