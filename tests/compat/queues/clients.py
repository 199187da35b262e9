"""What the stories of queues ask of every client. Positions are those of partition 0, the only one of most topics."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

# How often producers refresh their metadata.
REFRESH_MS = 500


class Sent(NamedTuple):
    """A record to produce. `timestamp_ms` 0: the current time. `key`: empty if it has none."""

    value: str
    headers: tuple[tuple[str, str], ...] = ()
    timestamp_ms: int = 0
    key: str = ""

    @property
    def key_bytes(self) -> bytes | None:
        return self.key.encode() or None


class Got(NamedTuple):
    """A record as a consumer received it."""

    offset: int
    timestamp_ms: int
    value: str
    headers: dict[str, str]


class Reader(Protocol):
    """A member of a group that reads a topic from its beginning."""

    def poll(self) -> list[Got]:
        """Return the next records; none after about half a second without records."""
        ...

    def position(self) -> int | None:
        """Return the offset up to which the client has read, behind records that it does not show.

        None if that is not known, as of a client that stays at its offset until it receives a record.
        """
        ...

    def seek(self, offset: int) -> None: ...

    def seek_to_time(self, timestamp_ms: int) -> None:
        """Seek to the first record with this timestamp or a later one, in milliseconds."""
        ...

    def close(self) -> None:
        """Commit, and leave the group."""
        ...


class Client(Protocol):
    """A client library, with its idempotent producer.

    `commits`: its readers are in a group. `commits_position`: it commits its position; otherwise the offset after the
    last record that it has returned.
    """

    commits: bool
    commits_position: bool

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        """Send the records at once, so that they are in one batch of each partition, and return their offsets.

        The offsets count only for topics with one partition.
        """
        ...

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        """Send the records in a transaction, and commit or abort it."""
        ...

    def reader(self, topic: str, group: str, read_committed: bool = False) -> Reader: ...

    def close(self) -> None: ...


def text(headers: Sequence[tuple[str, bytes | None]]) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in headers}


def encoded(record: Sent) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in record.headers]
