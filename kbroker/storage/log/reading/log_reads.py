"""The read side of a log."""

from collections.abc import Callable
from typing import TypeVar, cast

from kbroker.common import Buffer
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.indexes.index_file import WouldBlock
from kbroker.storage.indexes.transaction_index import AbortedTransaction
from kbroker.storage.log.log_health import LogHealth
from kbroker.storage.log.reading.aborted_transactions import find_aborted_transactions
from kbroker.storage.log.reading.file_slice import FileSlice
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.reading.read_batches import bytes_between, read_batches, read_batches_blocking
from kbroker.storage.log.reading.timestamp_lookup import (
    TimestampedOffset,
    Visible,
    find_max_timestamp,
    find_offset_for_timestamp,
)
from kbroker.storage.log.segment import LogSegment

T = TypeVar("T")


class LogReads(LogHealth):
    """A base of Log, which sets and changes these attributes.

    The log has records from `log_start_offset` to before `log_end_offset`; everything below `recovery_point` is synced.
    No transaction with a marker beyond `last_aborted_offset` was aborted. `contents` is replaced by another object
    when records change or disappear: by retention, compaction and truncation.
    """

    __slots__ = (
        "config",
        "contents",
        "last_aborted_offset",
        "log_end_offset",
        "log_start_offset",
        "positions",
        "recovery_point",
        "segments",
    )

    config: TopicConfig
    contents: object
    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    last_aborted_offset: int
    positions: PositionCache

    def read(self, offset: int, max_bytes: int, max_offset: int, min_one: bool = True) -> Buffer | None:
        """Read complete batches of one segment, from the one that contains `offset` on and below `max_offset`.

        Returns None if that would wait for the disk: call `read_blocking` in a thread. The batches have at most
        `max_bytes`; with `min_one` the first one may be larger. Raises KafkaError: OFFSET_OUT_OF_RANGE,
        CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR.
        """
        return cast("Buffer | None", self.read_or_slice(offset, max_bytes, max_offset, min_one, allow_slice=False))

    def read_or_slice(
        self, offset: int, max_bytes: int, max_offset: int, min_one: bool = True, *, allow_slice: bool = True
    ) -> Buffer | FileSlice | None:
        """Like `read`, but a large result may be a FileSlice, which is read when it is sent."""
        try:
            return read_batches(self, offset, max_bytes, max_offset, min_one, False, allow_slice)
        except WouldBlock:
            return None
        except OSError as error:
            raise self.read_failed(error) from error

    def read_blocking(self, offset: int, max_bytes: int, max_offset: int, min_one: bool = True) -> Buffer:
        """Like `read`, but in a thread."""
        return self._try(read_batches_blocking, self, offset, max_bytes, max_offset, min_one)

    def aborted_transactions(self, offset: int, size: int, wait: bool) -> list[AbortedTransaction] | None:
        """Return the aborted transactions among `size` bytes read from `offset` on, in the order of their markers.

        Returns None if that would wait for the disk: call it with `wait` in a thread. Raises KafkaError.
        """
        if offset > self.last_aborted_offset or not size:
            return []
        try:
            return self._try(find_aborted_transactions, self, offset, size, wait)
        except WouldBlock:
            return None

    def offset_for_timestamp_blocking(
        self, timestamp: int, max_offset: int, visible: Visible | None = None
    ) -> TimestampedOffset | None:
        """Return the first record below `max_offset` whose timestamp is at least `timestamp`. Raises KafkaError.

        `visible`: see timestamp_lookup.py.
        """
        return self._try(find_offset_for_timestamp, self, timestamp, max_offset, visible)

    def max_timestamp_blocking(self, visible: Visible | None = None) -> TimestampedOffset | None:
        """Return the first record with the largest timestamp (KIP-734). Raises KafkaError."""
        return self._try(find_max_timestamp, self, visible)

    def _try(self, read: Callable[..., T], *arguments: object) -> T:
        try:
            return read(*arguments)
        except OSError as error:
            raise self.read_failed(error) from error

    @property
    def readable_end(self) -> int:
        """The offset up to which the log can be read.

        An offline log can be read up to the recovery point, since the rest may not be on the disk; after a failed read
        it cannot be read at all.
        """
        if self._offline is None:
            return self.log_end_offset
        return self.recovery_point if self._is_readable else self.log_start_offset

    def bytes_between(self, start: int, end: int) -> int:
        """Return the number of bytes between two offsets; 0 if that would require a disk read."""
        return bytes_between(self, start, end)

    @property
    def size_bytes(self) -> int:
        """The size of all log files, without indexes."""
        return sum([segment.size for segment in self.segments])
