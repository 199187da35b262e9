"""Ranges of records that were read from archives, for the fetches that follow (pure)."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.replica.fetch.read_filter import ReadFilter
from protocol.records.batch import BatchHeader, iter_headers


class HistoryKey(NamedTuple):
    """Whose records: of a partition, as consumers with this isolation and this read filter see them."""

    topic_id: bytes
    partition: int
    read_committed: bool
    read_filter: ReadFilter | None


class HistoryRange(NamedTuple):
    """The batches of the offsets from `start` to `end`, exclusive. There may be none."""

    start: int
    end: int
    records: bytes
    batches: tuple[tuple[int, int], ...]  # the last offset of each, and the position at which it ends

    def has_records_from(self, offset: int) -> bool:
        return bool(self.batches) and self.batches[-1][0] >= offset

    def select(self, offset: int, max_bytes: int, *, is_first: bool) -> memoryview:
        """Return the batches from the one with `offset` on, at most `max_bytes`; `is_first`: but at least one."""
        start = end = 0
        for last_offset, position in self.batches:
            if last_offset < offset:
                start = end = position
            elif position - start <= max_bytes or (is_first and end == start):
                end = position
            else:
                break
        return memoryview(self.records)[start:end]


def make_range(start: int, end: int, records: bytes) -> HistoryRange:
    """Raises ValueError if the records are not complete batches of these offsets in order.

    The first one may begin before `start`.
    """
    if end <= start:
        raise ValueError(f"the range from {start} to {end}")
    batches: list[tuple[int, int]] = []
    next_offset, position = start, 0
    for position, header in _headers(records):
        if not next_offset < header.next_offset <= end or (batches and header.base_offset < next_offset):
            raise ValueError(f"a batch of the offsets {header.base_offset} to {header.last_offset}")
        next_offset = header.next_offset
        batches.append((header.last_offset, position))
    if position != len(records):
        raise ValueError(f"an incomplete batch after {position} bytes")
    return HistoryRange(start, end, records, tuple(batches))


def _headers(records: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over the headers of batches, with the positions at which the batches end."""
    for position, header in iter_headers(records):
        yield position + header.size, header


class HistoryCache:
    """Ranges of at most `max_bytes` in all, which expire: a record may be erased from the archive."""

    def __init__(self, max_bytes: int, expiry_ms: int) -> None:
        self.size = 0
        self._max_bytes = max_bytes
        self._expiry_ms = expiry_ms
        # By key and start; the range that was added first is the first.
        self._ranges: OrderedDict[tuple[HistoryKey, int], tuple[HistoryRange, int]] = OrderedDict()
        self._starts: dict[HistoryKey, list[int]] = {}

    def find(self, key: HistoryKey, offset: int, now_ms: int) -> HistoryRange | None:
        """Return the range with an offset. `now_ms` is monotonic."""
        for start in self._starts.get(key, ()):
            found, expires_ms = self._ranges[key, start]
            if start <= offset < found.end and now_ms < expires_ms:
                return found
        return None

    def add(self, key: HistoryKey, added: HistoryRange, now_ms: int) -> None:
        self._remove(key, added.start)
        self._ranges[key, added.start] = added, now_ms + self._expiry_ms
        self._starts.setdefault(key, []).append(added.start)
        self.size += len(added.records)
        while self._ranges:
            (oldest, start), (_, expires_ms) = next(iter(self._ranges.items()))
            if now_ms < expires_ms and (self.size <= self._max_bytes or len(self._ranges) == 1):
                break
            self._remove(oldest, start)

    def _remove(self, key: HistoryKey, start: int) -> None:
        removed = self._ranges.pop((key, start), None)
        if removed is not None:
            self.size -= len(removed[0].records)
            self._starts[key].remove(start)
            if not self._starts[key]:
                del self._starts[key]
