"""The partition chunks as last read, with indexes that find a partition, or space for one, without a full scan."""

from collections.abc import Collection, ItemsView, Iterator, KeysView, Mapping

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.store.znodes import CHUNK_PARTITIONS, Chunk


class LoadedChunks:
    """Chunks by number. Only `replace` and `set_row` change them."""

    def __init__(self, chunks: Mapping[int, Chunk] | None = None) -> None:
        self._chunks: dict[int, Chunk] = {}
        # The number of partitions that still fit into each chunk that is not full.
        self._free: dict[int, int] = {}
        # The chunks of each topic.
        self._numbers: dict[bytes, dict[int, None]] = {}
        self.next_number = 0
        for number, chunk in (chunks or {}).items():
            self.replace(number, chunk)

    def __contains__(self, number: object) -> bool:
        return number in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def get(self, number: int) -> Chunk:
        """Return a chunk; an empty one if it does not exist."""
        return self._chunks.get(number, {})

    def numbers(self) -> KeysView[int]:
        return self._chunks.keys()

    def items(self) -> ItemsView[int, Chunk]:
        return self._chunks.items()

    def numbers_of(self, topic_id: bytes) -> Collection[int]:
        """Return the chunks that have partitions of a topic."""
        return self._numbers.get(topic_id, {}).keys()

    def free(self) -> Iterator[tuple[int, int]]:
        """Yield (number of the chunk, partitions that still fit) for the chunks that are not full, the newest first."""
        for number in reversed(self._free):
            yield number, self._free[number]

    def find(self, topic_id: bytes, index: int) -> int | None:
        """Return the chunk of a partition."""
        for number in self._numbers.get(topic_id, ()):
            if index in self._chunks[number][topic_id]:
                return number
        return None

    def partition(self, topic_id: bytes, index: int) -> PartitionRegistration | None:
        number = self.find(topic_id, index)
        return None if number is None else self._chunks[number][topic_id][index]

    def replace(self, number: int, chunk: Chunk) -> None:
        """Replace a chunk, or add it."""
        for topic_id in self._chunks.get(number, ()):
            if topic_id not in chunk:
                self._remove_number(topic_id, number)
        for topic_id in chunk:
            self._numbers.setdefault(topic_id, {})[number] = None
        self._chunks[number] = chunk
        self.next_number = max(self.next_number, number + 1)
        self._set_free(number, CHUNK_PARTITIONS - sum(map(len, chunk.values())))

    def set_row(self, number: int, topic_id: bytes, index: int, row: PartitionRegistration | None) -> None:
        """Replace, add or (None) remove a partition of a chunk that exists."""
        chunk = self._chunks[number]
        partitions = chunk.get(topic_id)
        if row is not None:
            if partitions is None:
                partitions = chunk[topic_id] = {}
                self._numbers.setdefault(topic_id, {})[number] = None
            if index not in partitions:
                self._set_free(number, self._free.get(number, 0) - 1)
            partitions[index] = row
        elif partitions is not None and partitions.pop(index, None) is not None:
            self._set_free(number, self._free.get(number, 0) + 1)
            if not partitions:
                del chunk[topic_id]
                self._remove_number(topic_id, number)

    def _set_free(self, number: int, count: int) -> None:
        if count > 0:
            self._free[number] = count
        else:
            self._free.pop(number, None)

    def _remove_number(self, topic_id: bytes, number: int) -> None:
        numbers = self._numbers[topic_id]
        del numbers[number]
        if not numbers:
            del self._numbers[topic_id]
