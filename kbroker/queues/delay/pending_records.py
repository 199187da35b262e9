"""The pending records of a partition, in the order of delivery: by due time, then by offset.

A million of them must fit into little memory, so there is no object per record: a chunk is two arrays with 8 bytes per
record, one of due times and one of offsets. With the spare capacity of the arrays a record takes 16 to 36 bytes. Adding
or removing a record moves at most one chunk's bytes, 32 KiB.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kbroker.runtime.turns import yield_if_due

# (due time in ms since the epoch, offset)
Pending = tuple[int, int]

CHUNK_RECORDS = 2048
# A turn takes this many entries at once: some 40 us.
ENTRIES_AT_ONCE = 512


class _Chunk:
    """Entries in order. `is_shared`: a snapshot refers to the arrays.

    `lowest`: the lowest offset, perhaps of an entry that was removed unless it `is_exact`. To find it takes 30 us.
    """

    __slots__ = ("dues", "is_exact", "is_shared", "lowest", "offsets")

    def __init__(self, dues: "array[int]", offsets: "array[int]") -> None:
        self.dues = dues
        self.offsets = offsets
        self.is_shared = False
        self.update_lowest()

    @property
    def last(self) -> Pending:
        return self.dues[-1], self.offsets[-1]

    def update_lowest(self) -> None:
        self.lowest, self.is_exact = min(self.offsets, default=0), True

    def position(self, entry: Pending) -> int:
        """Return the position of an entry, or where it belongs."""
        start = bisect_left(self.dues, entry[0])
        return bisect_left(self.offsets, entry[1], start, bisect_right(self.dues, entry[0], start))

    def has(self, position: int, entry: Pending) -> bool:
        return position < len(self.dues) and self.dues[position] == entry[0] and self.offsets[position] == entry[1]

    def insert(self, position: int, entry: Pending) -> None:
        if self.is_shared:
            self.unshare()
        self.dues.insert(position, entry[0])
        self.offsets.insert(position, entry[1])
        if entry[1] < self.lowest:
            self.lowest = entry[1]

    def unshare(self) -> None:
        if self.is_shared:
            self.dues, self.offsets, self.is_shared = self.dues[:], self.offsets[:], False


_NO_ENTRIES = _Chunk(array("q"), array("q"))


class PendingRecords:
    """A sorted set of (due time, offset)."""

    __slots__ = ("_chunks", "_count", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        # The largest entry of each chunk. No chunk is empty.
        self._lasts: list[Pending] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, entry: Pending) -> None:
        lasts = self._lasts
        if not lasts or entry > lasts[-1]:
            self._append(entry)
            return
        number = bisect_left(lasts, entry)
        chunk = self._chunks[number]
        position = chunk.position(entry)
        if chunk.has(position, entry):
            return
        chunk.insert(position, entry)
        self._count += 1
        if len(chunk.dues) > CHUNK_RECORDS:
            dues, offsets, half = chunk.dues, chunk.offsets, len(chunk.dues) // 2
            halves = [_Chunk(dues[:half], offsets[:half]), _Chunk(dues[half:], offsets[half:])]
            self._chunks[number : number + 1] = halves
            lasts.insert(number, halves[0].last)

    def _append(self, entry: Pending) -> None:
        if not self._chunks or len(self._chunks[-1].dues) >= CHUNK_RECORDS:
            self._append_chunk(_Chunk(array("q", entry[:1]), array("q", entry[1:])))
            return
        chunk = self._chunks[-1]
        chunk.insert(len(chunk.dues), entry)
        self._lasts[-1] = entry
        self._count += 1

    def _append_chunk(self, chunk: _Chunk) -> None:
        self._chunks.append(chunk)
        self._lasts.append(chunk.last)
        self._count += len(chunk.dues)

    def discard_all(self, entries: Sequence[Pending]) -> int:
        """Remove entries. Returns how many were there. Those that follow one another here are removed at once."""
        before, at = self._count, 0
        while at < len(entries):
            number = bisect_left(self._lasts, entries[at])
            chunk = self._chunks[number] if number < len(self._chunks) else _NO_ENTRIES
            position = end = chunk.position(entries[at])
            while at < len(entries) and chunk.has(end, entries[at]):
                at, end = at + 1, end + 1
            if end == position:
                at += 1
                continue
            chunk.unshare()
            if chunk.lowest in chunk.offsets[position:end]:
                chunk.is_exact = False
            del chunk.dues[position:end], chunk.offsets[position:end]
            self._count -= end - position
            self._update_last(number)
        return before - self._count

    def _update_last(self, number: int) -> None:
        """Update the largest entry of a chunk after a removal; remove the chunk if it is empty."""
        if self._chunks[number].dues:
            self._lasts[number] = self._chunks[number].last
        else:
            del self._chunks[number], self._lasts[number]

    def drop_below(self, offset: int) -> None:
        """Remove all entries with a lower offset, in turns."""
        while True:
            number = next((number for number, chunk in enumerate(self._chunks) if chunk.lowest < offset), None)
            if number is None:
                return
            chunk = self._chunks[number]
            kept = [entry for entry in zip(chunk.dues, chunk.offsets, strict=True) if entry[1] >= offset]
            self._count -= len(chunk.dues) - len(kept)
            chunk.dues, chunk.offsets = array("q", [due for due, _ in kept]), array("q", [each for _, each in kept])
            chunk.is_shared = False
            chunk.update_lowest()
            self._update_last(number)
            yield_if_due()

    def __contains__(self, entry: Pending) -> bool:
        number = bisect_left(self._lasts, entry)
        return number < len(self._lasts) and self._chunks[number].has(self._chunks[number].position(entry), entry)

    def first_due_ms(self) -> int | None:
        return self._chunks[0].dues[0] if self._chunks else None

    def due(self, now_ms: int, limit: int) -> list[Pending]:
        """Return the first entries that are due, at most `limit`, in turns."""
        found: list[Pending] = []
        while len(found) < limit:
            some = self.after(found[-1] if found else None, min(limit - len(found), ENTRIES_AT_ONCE))
            del some[bisect_left(some, (now_ms + 1, -1)) :]
            found += some
            if len(some) < ENTRIES_AT_ONCE:
                break
            yield_if_due()
        return found

    def after(self, entry: Pending | None, limit: int) -> list[Pending]:
        """Return at most `limit` entries that follow `entry`, or the first ones."""
        found: list[Pending] = []
        number = 0 if entry is None else bisect_right(self._lasts, entry)
        while number < len(self._chunks) and len(found) < limit:
            chunk = self._chunks[number]
            start = 0 if entry is None or found else chunk.position((entry[0], entry[1] + 1))
            end = start + limit - len(found)
            found += zip(chunk.dues[start:end], chunk.offsets[start:end], strict=True)
            number += 1
        return found

    def lowest_offset(self) -> int | None:
        """Return the lowest offset of all entries, in turns; None if there are none."""
        while self._chunks:
            chunk = min(self._chunks, key=attrgetter("lowest"))
            if chunk.is_exact:
                return chunk.lowest
            chunk.update_lowest()
            yield_if_due()
        return None

    def share_chunks(self) -> list[tuple["array[int]", "array[int]"]]:
        """Return the due times and offsets of each chunk as they are now: 64-bit integers, this machine's byte order.

        A later change of a chunk copies its arrays first.
        """
        for chunk in self._chunks:
            chunk.is_shared = True
        return [(chunk.dues, chunk.offsets) for chunk in self._chunks]

    def load_chunk(self, dues: bytes, offsets: bytes) -> None:
        """Append a chunk of `share_chunks`. Raises ValueError unless it follows all entries."""
        due_array, offset_array = array("q"), array("q")
        due_array.frombytes(dues)
        offset_array.frombytes(offsets)
        if not due_array or len(due_array) != len(offset_array):
            raise ValueError(f"a chunk of {len(due_array)} due times and {len(offset_array)} offsets")
        if self._lasts and (due_array[0], offset_array[0]) <= self._lasts[-1]:
            raise ValueError("chunks are not in order")
        self._append_chunk(_Chunk(due_array, offset_array))
