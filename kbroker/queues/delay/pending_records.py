"""The pending records of a partition, in the order of delivery: by due time, then by offset.

A million of them must fit into little memory, so there is no object per record: a chunk is two arrays with 8 bytes per
record, one of due times and one of offsets. With the spare capacity of the arrays a record takes 16 to 36 bytes. Adding
or removing a record moves at most one chunk's bytes, 32 KiB.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

# (due time in ms since the epoch, offset)
Pending = tuple[int, int]

CHUNK_RECORDS = 2048


class PendingRecords:
    """A sorted set of (due time, offset)."""

    __slots__ = ("_count", "_dues", "_lasts", "_offsets")

    def __init__(self) -> None:
        self._dues: list[array[int]] = []
        self._offsets: list[array[int]] = []
        # The largest entry of each chunk. No chunk is empty.
        self._lasts: list[Pending] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due_ms: int, offset: int) -> None:
        entry = (due_ms, offset)
        lasts = self._lasts
        if not lasts or entry > lasts[-1]:
            self._append(entry)
            return
        number = bisect_left(lasts, entry)
        dues, offsets = self._dues[number], self._offsets[number]
        position = _position(dues, offsets, entry)
        if position < len(dues) and dues[position] == due_ms and offsets[position] == offset:
            return
        dues.insert(position, due_ms)
        offsets.insert(position, offset)
        self._count += 1
        if len(dues) > CHUNK_RECORDS:
            self._split(number)

    def _append(self, entry: Pending) -> None:
        if not self._lasts or len(self._dues[-1]) >= CHUNK_RECORDS:
            self._dues.append(array("q"))
            self._offsets.append(array("q"))
            self._lasts.append(entry)
        self._dues[-1].append(entry[0])
        self._offsets[-1].append(entry[1])
        self._lasts[-1] = entry
        self._count += 1

    def _split(self, number: int) -> None:
        dues, offsets = self._dues[number], self._offsets[number]
        half = len(dues) // 2
        self._dues[number : number + 1] = [dues[:half], dues[half:]]
        self._offsets[number : number + 1] = [offsets[:half], offsets[half:]]
        self._lasts.insert(number, (dues[half - 1], offsets[half - 1]))

    def discard(self, due_ms: int, offset: int) -> bool:
        """Remove an entry. Returns whether it was there."""
        number = bisect_left(self._lasts, (due_ms, offset))
        if number == len(self._lasts):
            return False
        dues, offsets = self._dues[number], self._offsets[number]
        position = _position(dues, offsets, (due_ms, offset))
        if dues[position] != due_ms or offsets[position] != offset:
            return False
        del dues[position], offsets[position]
        self._count -= 1
        if not dues:
            del self._dues[number], self._offsets[number], self._lasts[number]
        else:
            self._lasts[number] = (dues[-1], offsets[-1])
        return True

    def __contains__(self, entry: Pending) -> bool:
        number = bisect_left(self._lasts, entry)
        if number == len(self._lasts):
            return False
        dues, offsets = self._dues[number], self._offsets[number]
        position = _position(dues, offsets, entry)
        return dues[position] == entry[0] and offsets[position] == entry[1]

    def first_due_ms(self) -> int | None:
        return self._dues[0][0] if self._dues else None

    def due(self, now_ms: int, limit: int) -> list[Pending]:
        """Return the first entries that are due, at most `limit`."""
        return [entry for entry in self.after(None, limit) if entry[0] <= now_ms]

    def after(self, entry: Pending | None, limit: int) -> list[Pending]:
        """Return at most `limit` entries that follow `entry`, or the first ones."""
        found: list[Pending] = []
        number = 0 if entry is None else bisect_right(self._lasts, entry)
        while number < len(self._lasts) and len(found) < limit:
            dues, offsets = self._dues[number], self._offsets[number]
            start = 0
            if entry is not None and not found:
                start = _position(dues, offsets, (entry[0], entry[1] + 1))
            end = start + limit - len(found)
            found += zip(dues[start:end], offsets[start:end], strict=True)
            number += 1
        return found

    def lowest_offset(self) -> int | None:
        return min([min(offsets) for offsets in self._offsets]) if self._offsets else None

    def below(self, offset: int, limit: int) -> list[Pending]:
        """Return entries with a lower offset, in the order of delivery, at most `limit`."""
        found: list[Pending] = []
        for dues, offsets in zip(self._dues, self._offsets, strict=True):
            if min(offsets) < offset:
                found += [entry for entry in zip(dues, offsets, strict=True) if entry[1] < offset]
                if len(found) >= limit:
                    return found[:limit]
        return found

    def chunks(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the due times and offsets of each chunk, as 64-bit integers in this machine's byte order."""
        for dues, offsets in zip(self._dues, self._offsets, strict=True):
            yield dues.tobytes(), offsets.tobytes()

    def load_chunk(self, dues: bytes, offsets: bytes) -> None:
        """Append a chunk from `chunks`. Raises ValueError unless it follows all entries."""
        due_array, offset_array = array("q"), array("q")
        due_array.frombytes(dues)
        offset_array.frombytes(offsets)
        if not due_array or len(due_array) != len(offset_array):
            raise ValueError(f"a chunk of {len(due_array)} due times and {len(offset_array)} offsets")
        if self._lasts and (due_array[0], offset_array[0]) <= self._lasts[-1]:
            raise ValueError("chunks are not in order")
        self._dues.append(due_array)
        self._offsets.append(offset_array)
        self._lasts.append((due_array[-1], offset_array[-1]))
        self._count += len(due_array)


def _position(dues: "array[int]", offsets: "array[int]", entry: Pending) -> int:
    """Return the position of an entry in its chunk, or where it belongs."""
    start = bisect_left(dues, entry[0])
    return bisect_left(offsets, entry[1], start, bisect_right(dues, entry[0], start))
