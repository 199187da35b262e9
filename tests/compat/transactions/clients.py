"""What the tests of transactions ask of a client, whichever it is; confluent.py, python.py and java.py do it."""

from collections.abc import Mapping
from typing import Any, Protocol

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


class Member(Protocol):
    """A consumer that has joined a group and reads with read_committed."""

    def metadata(self) -> Any:
        """Group id, generation and member id, as KIP-447 sends them along."""
        ...

    def read(self, count: int) -> list[bytes]: ...
    def leave(self) -> None: ...


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

    def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """The group's committed offset, -1 if there is none.

        Raises TimeoutError when another one is pending for long.
        """
        ...

    def close(self) -> None: ...
