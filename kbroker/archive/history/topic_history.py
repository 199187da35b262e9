"""The history of one topic: its table, the newest state of it, and answers to the calls."""

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyiceberg.io import FileIO

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import open_archive
from kbroker.archive.decoding.settings import require_raw
from kbroker.archive.errors import ArchiveError
from kbroker.archive.history.batches import encode_rows, epoch_at
from kbroker.archive.history.blocks import Block
from kbroker.archive.history.file_reader import FileReader, first_rows
from kbroker.archive.history.layout import Layout, partition_files

T = TypeVar("T")
# The state is read again when it is older and its bounds are asked for.
MAX_AGE_S = 3.0
MAX_RESPONSE_BYTES = 8 << 20
ABSENT, DAMAGED, REFUSED, UNAVAILABLE = "absent", "damaged", "refused", "unavailable"


class HistoryReadError(Exception):
    """A call fails: `kind` says whether the archive is absent, damaged, refused or unavailable at the moment."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class HistoryBatches(NamedTuple):
    batches: list[bytearray]
    next_offset: int


class FoundRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int


class TopicHistory:
    """A topic of an archive. Thread-safe: a thread that reads the state again does not delay those that need none."""

    def __init__(self, archive: str, topic: str, reader: FileReader) -> None:
        self.archive = archive
        self.topic = topic
        self._reader = reader
        self._table: ArchiveTable | None = None
        self._layout: Layout | None = None
        self._read_at = 0.0
        self._lock = threading.Lock()

    def bounds(self) -> Layout:
        """Return the state of the table, which is not older than MAX_AGE_S."""
        return self._newest(time.monotonic() - MAX_AGE_S)

    def fetch(self, partition: int, offset: int, end: int, max_bytes: int) -> HistoryBatches:
        """Return batches of the records [offset, end), of at most `max_bytes` but at least one batch."""
        started = time.monotonic()
        layout = self._layout or self._newest(started)
        limit = min(end, layout.state.resume_offsets().get(partition, 0))
        if offset < limit:
            fetched = self._with_files(lambda layout: self._fetch(layout, partition, offset, limit, max_bytes))
            if fetched.batches or limit == end:
                return fetched
        # Before this steps over offsets that the table does not cover, it reads whether it covers them now.
        self._newest(started)
        return self._with_files(lambda layout: self._fetch(layout, partition, offset, end, max_bytes))

    def first_since(self, partition: int, timestamp_ms: int) -> FoundRecord | None:
        """Return the record with the lowest offset whose timestamp is not lower; None if there is none."""
        return self._with_files(lambda layout: self._first_since(layout, partition, timestamp_ms))

    def prefetch(self, partition: int, offset: int) -> None:
        """Read the block with this offset into the cache. A failure is reported by the fetch that needs the block."""
        layout = self._layout
        if layout is not None:
            self._rows_at(layout, partition, offset)

    def _fetch(self, layout: Layout, partition: int, offset: int, end: int, max_bytes: int) -> HistoryBatches:
        files = layout.files_of(partition)
        epochs = layout.state.leader_epochs.get(partition, ())
        batches: list[bytearray] = []
        room = min(max_bytes, MAX_RESPONSE_BYTES)
        while offset < end:
            rows = self._rows_at(layout, partition, offset)
            start, stop = (0, 0) if rows is None else (rows.position(offset), rows.position(end))
            if rows is None or start == stop:
                return HistoryBatches(batches, end)
            following = end if stop < len(rows) else min(end, files.next_offset(rows.last) or end)
            encoded = encode_rows(rows.slice(start, stop), epochs, following, room)
            if batches and encoded.size > room:
                break
            batches += encoded.batches
            room -= encoded.size
            offset = encoded.next_offset
            if room <= 0 or encoded.rows < stop - start:
                break
        return HistoryBatches(batches, offset)

    def _rows_at(self, layout: Layout, partition: int, offset: int) -> Block | None:
        """Return the first rows from this offset on, perhaps after others."""
        files = layout.files_of(partition).with_offsets_from(offset)
        return first_rows(
            (file.first, partial(self._read, file.path, partial(self._reader.block_at, offset=offset)))
            for file in files
        )

    def _first_since(self, layout: Layout, partition: int, timestamp_ms: int) -> FoundRecord | None:
        best: tuple[int, int] | None = None
        search = partial(self._reader.first_since, timestamp_us=1000 * timestamp_ms)
        for file in layout.files_of(partition).with_times_from(timestamp_ms):
            if best is not None and file.first > best[0]:
                break
            found = self._read(file.path, search)
            if found is not None:
                best = found if best is None else min(best, found)
        if best is None:
            return None
        epoch, _ = epoch_at(layout.state.leader_epochs.get(partition, ()), best[0])
        return FoundRecord(best[0], best[1] // 1000, epoch)

    def _with_files(self, call: Callable[[Layout], T]) -> T:
        """Call with the state of the table; again with the newest one if a file is gone, for example merged."""
        layout = self._layout or self._newest(0.0)
        try:
            return call(layout)
        except _MissingFileError:
            newest = self._newest(time.monotonic())
            if newest.snapshot_id == layout.snapshot_id:
                raise
            return call(newest)

    def _read(self, path: str, read: Callable[[FileIO, str], T]) -> T:
        assert self._table is not None
        try:
            return read(self._table.iceberg.io, path)
        except FileNotFoundError:
            self._reader.forget(path)
            raise _MissingFileError(DAMAGED, f"{path} is missing") from None
        except (OSError, pa.ArrowException, KeyError) as error:
            self._reader.forget(path)
            kind = UNAVAILABLE if _is_temporary(error) else DAMAGED
            raise HistoryReadError(kind, f"{path} cannot be read: {_one_line(error)}") from error

    def _newest(self, since: float) -> Layout:
        """Return a state that was read at this monotonic time or later."""
        with self._lock:
            if self._layout is None or self._read_at < since:
                started = time.monotonic()
                self._layout = self._read_layout(self._layout)
                self._read_at = started
            return self._layout

    def _read_layout(self, before: Layout | None) -> Layout:
        try:
            if self._table is None:
                self._table = open_archive(self.archive).table(self.topic)
            else:
                self._table.refresh()
            require_raw(self._table.iceberg.properties, self._table.location)
            snapshot = self._table.iceberg.current_snapshot()
            snapshot_id = None if snapshot is None else snapshot.snapshot_id
            if before is not None and before.snapshot_id == snapshot_id:
                return before
            require_raw(self._table.iceberg.properties, self._table.location)
            committed_only = json.loads(self._table.iceberg.properties.get("kbroker.committed-only", "false"))
            return Layout(self._table.state, snapshot_id, committed_only, partition_files(self._table.files()))
        except ArchiveError as error:
            raise HistoryReadError(_kind_of(error), str(error)) from error


class _MissingFileError(HistoryReadError):
    """A file of the table does not exist."""


def _kind_of(error: ArchiveError) -> str:
    if error.__cause__ is not None:
        return UNAVAILABLE  # a catalogue or a file system has failed
    return ABSENT if "no archive found" in str(error) or "has no topic" in str(error) else REFUSED


def _is_temporary(error: Exception) -> bool:
    """Return whether the storage has failed, not the file's format: pyarrow reports both as OSError."""
    return isinstance(error, OSError) and (error.errno is not None or "AWS Error" in str(error))


def _one_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
