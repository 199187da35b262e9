"""The client interface of the transaction tests, implemented by each *_client.py."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.compat.support import DEADLINE_S, eventually

# How a client classifies an error: a newer instance has its transactional id; the transaction can be aborted and the
# next one begun; or a new producer has to be created.
FENCED = "fenced"
ABORTABLE = "abortable"
FATAL = "fatal"

# Consumers' isolation levels.
COMMITTED = "read_committed"
UNCOMMITTED = "read_uncommitted"


class TransactionError(Exception):
    """A transactional call failed."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


class TransactionalProducer(Protocol):
    """Every method may raise TransactionError; an error of `send` may be raised only by `flush`."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...
    def flush(self) -> None:
        """Wait until every sent record is acknowledged."""
        ...

    def send_offsets(self, metadata: Any, topic: str, offsets: Mapping[int, int]) -> None:
        """`metadata`: from Member.metadata; `offsets`: by partition."""
        ...

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None:
        """End without another request to the coordinator, if the client can. May be called twice."""
        ...


class Member(ABC):
    """A consumer that has joined a group, has an assignment, and reads with read_committed."""

    def __init__(self, consumer: Any, topics: Any, assigned: Callable[[], Any]) -> None:
        """`topics`: the argument of the client's subscribe; `assigned`: returns true when it has partitions."""
        self._consumer = consumer
        self._read: list[bytes] = []
        consumer.subscribe(topics)
        eventually(lambda: self._poll() or assigned(), "the member's partitions", interval=0)

    @abstractmethod
    def metadata(self) -> Any:
        """Return the group metadata (KIP-447)."""

    @abstractmethod
    def poll(self) -> list[bytes]:
        """Return the next values."""

    def read(self, count: int) -> list[bytes]:
        eventually(lambda: self._poll() or len(self._read) >= count, f"{count} records", interval=0)
        values, self._read = self._read[:count], self._read[count:]
        return values

    def leave(self) -> None:
        self._consumer.close()

    def _poll(self) -> None:
        self._read += self.poll()


class Client(Protocol):
    """A client library connected to one broker."""

    knows_kip_447: bool  # sends group metadata with offsets, and waits for pending offsets

    def transactional_producer(self, transactional_id: str, timeout_ms: int = 60_000) -> TransactionalProducer:
        """`timeout_ms`: transaction.timeout.ms."""
        ...

    def plain(self) -> TransactionalProducer:
        """Return an idempotent producer without a transactional id, for `send` and `flush` only."""
        ...

    def read(self, topic: str, isolation: str, partitions: int = 1) -> list[list[bytes]]:
        """Return the values of each partition, from its start to its current end at this isolation level."""
        ...

    def end(self, topic: str, isolation: str, partition: int = 0) -> int:
        """Return the current end offset at this isolation level."""
        ...

    def member(self, group: str, topic: str) -> Member:
        """Return a consumer that has an assignment."""
        ...

    def committed(self, group: str, topic: str, partition: int = 0, timeout_s: float = DEADLINE_S) -> int:
        """Return the group's committed offset, -1 if there is none.

        Raises TimeoutError if there is still a pending offset of an open transaction after `timeout_s`.
        """
        ...

    def close(self) -> None: ...
