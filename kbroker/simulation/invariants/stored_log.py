"""The batches of a log on a machine's disk, followed as the log grows, is truncated and loses its first segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.simulation.disk.log_files import read_batches, segment_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kbroker.simulation.disk.disk import SimDisk

# The bytes of a batch header; with its CRC they identify the batch.
HEADER_BYTES = 61


class BatchId(NamedTuple):
    """What two replicas must agree on: offsets, leader epoch, and the CRC of the rest."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class _Batch(NamedTuple):
    id: BatchId
    start: int
    end: int
    header: bytes


class StoredLog:
    """The valid batches of the segments, by base offset of the segment.

    `truncated_to`: the lowest offset at which the log was cut since this was reset.
    """

    def __init__(self) -> None:
        self.truncated_to: int | None = None
        self._segments: dict[int, list[_Batch]] = {}
        # The state of the directory that was read last: its disk, path and number of changes.
        self._read: tuple[SimDisk, str | None, int] | None = None

    def is_current(self, disk: SimDisk, path: str | None) -> bool:
        """Whether nothing has changed in the directory since it was read."""
        return self._read == (disk, path, disk.changes[path or ""])

    def update(self, disk: SimDisk, path: str | None) -> list[BatchId]:
        """Read what is new in the directory, None for a log that does not exist. Returns the new batches."""
        if self.is_current(disk, path):
            return []
        self._read = disk, path, disk.changes[path or ""]
        listed = dict(segment_files(disk, path)) if path is not None and disk.isdir(path) else {}
        added: list[BatchId] = []
        # Retention removes the first segments. Any others are removed by a truncation.
        last_kept = max((base for base in self._segments if base in listed), default=-1)
        for base in [base for base in self._segments if base not in listed]:
            batches = self._segments.pop(base)
            if batches and base > last_kept:
                self._cut(batches[0].id.base_offset)
        for base, file in listed.items():
            added += self._update_segment(base, disk.data(file))
        return added

    def _update_segment(self, base: int, data: bytes | bytearray) -> list[BatchId]:
        batches = self._segments.setdefault(base, [])
        while batches and data[batches[-1].start : batches[-1].start + HEADER_BYTES] != batches[-1].header:
            self._cut(batches.pop().id.base_offset)
        if batches and batches[-1].end > len(data):
            self._cut(batches.pop().id.base_offset)
        position = batches[-1].end if batches else 0
        if position >= len(data):
            return []
        added = []
        for batch in read_batches(data, position):
            header = batch.header
            id = BatchId(header.base_offset, header.next_offset, header.leader_epoch, header.crc)
            batches.append(_Batch(id, batch.start, batch.end, bytes(data[batch.start : batch.start + HEADER_BYTES])))
            added.append(id)
        return added

    def _cut(self, offset: int) -> None:
        self.truncated_to = offset if self.truncated_to is None else min(self.truncated_to, offset)

    @property
    def start(self) -> int:
        """The base offset of the first batch, or that of the empty last segment."""
        first = (batches[0].id.base_offset for _, batches in sorted(self._segments.items()) if batches)
        return next(first, self.active_base)

    @property
    def end(self) -> int:
        """The offset after the last batch, or the base offset of an empty last segment; 0 if there is neither."""
        base = self.active_base
        batches = self._segments.get(base)
        return batches[-1].id.next_offset if batches else base

    @property
    def active_base(self) -> int:
        """The base offset of the last segment, which compaction does not change."""
        return max(self._segments, default=0)

    def batches_from(self, offset: int) -> Iterator[BatchId]:
        """Yield the batches that end after this offset, in order."""
        for base in sorted(self._segments):
            batches = self._segments[base]
            if batches and batches[-1].id.next_offset > offset:
                for batch in batches:
                    if batch.id.next_offset > offset:
                        yield batch.id
