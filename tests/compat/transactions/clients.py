"""What the tests of transactions ask of a client, whichever it is; confluent.py, python.py and java.py do it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.compat.support import DEADLINE_S, eventually

# What a client makes of a failure: another instance has its transactional id, so it is over; the transaction can be
# aborted and the next begun; or the producer has to be made anew.
FENCED = "fenced"
ABORTABLE = "abortable"
FATAL = "fatal"

# Consumers' isolation levels.
COMMITTED = "read_committed"
UNCOMMITTED = "read_uncommitted"


class Refused(Exception):
    """A transactional call failed."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


class Transactor(Protocol):
    """A transactional producer. Everything may raise Refused; what `send` cannot say at once is said by `flush`."""

    def init(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...
    def flush(self) -> None:
        """All that was sent is in the log."""
        ...

    def send_offsets(self, metadata: Any, topic: str, offsets: Mapping[int, int]) -> None:
        """`metadata`: of a Member; `offsets` by partition."""
        ...

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None:
        """Ends without another request to the coordinator, as far as the client can; twice does no harm."""
        ...


class Member(ABC):
    """A consumer that has joined a group, has got its partitions, and reads with read_committed."""

    def __init__(self, consumer: Any, topics: Any, assigned: Callable[[], Any]) -> None:
        """`topics` as the client's own subscribe takes them; `assigned` says whether it has partitions."""
        self._consumer = consumer
        self._read: list[bytes] = []
        consumer.subscribe(topics)
        eventually(lambda: self._take() or assigned(), "the member's partitions", interval=0)

    @abstractmethod
    def metadata(self) -> Any:
        """Group id, generation and member id, as KIP-447 sends them along."""

    @abstractmethod
    def poll(self) -> list[bytes]:
        """The values that come next."""

    def read(self, count: int) -> list[bytes]:
        eventually(lambda: self._take() or len(self._read) >= count, f"{count} records", interval=0)
        taken, self._read = self._read[:count], self._read[count:]
        return taken

    def leave(self) -> None:
        self._consumer.close()

    def _take(self) -> None:
        self._read += self.poll()


class Client(Protocol):
    """A client library and a broker."""

    knows_kip_447: bool  # sends group metadata with offsets, and waits for pending ones

    def transactor(self, transactional_id: str, timeout_ms: int = 60_000) -> Transactor:
        """`timeout_ms`: transaction.timeout.ms."""
        ...

    def plain(self) -> Transactor:
        """An idempotent producer without a transactional id: only `send` and `flush`."""
        ...

    def read(self, topic: str, isolation: str, partitions: int = 1) -> list[list[bytes]]:
        """The values of each partition from its start to the end that this isolation level has now."""
        ...

    def end(self, topic: str, isolation: str, partition: int = 0) -> int:
        """The end offset that this isolation level has now."""
        ...

    def member(self, group: str, topic: str) -> Member:
        """A consumer that has got its partitions."""
        ...

    def committed(self, group: str, topic: str, partition: int = 0, timeout_s: float = DEADLINE_S) -> int:
        """Return the group's committed offset, -1 if there is none.

        Raises TimeoutError if there is still a pending offset of an open transaction after `timeout_s`.
        """
        ...

    def close(self) -> None: ...
