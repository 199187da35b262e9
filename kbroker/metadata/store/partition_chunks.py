"""Partition state is stored in chunks, nodes with at most 128 partitions each. A draft changes several chunks.

LoadedChunks are the chunks as last read, with indexes that find a partition, or space for one, without a full scan.
"""

from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass

from kbroker.coordination.interface import Create, Op, Set
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.store.znodes import CHUNK_PARTITIONS, Chunk, chunk_path, encode_chunk

# A chunk of topics with one partition each, with three replicas.
MAX_CHUNK_BYTES = 10_000
# A change includes the changed rows if they are at most this share of their chunk. So a multi grows by half at most.
MAX_ROWS_SHARE = 0.5
# The rows of a topic that have changed, by partition; None for one that was removed.
TopicRows = dict[int, PartitionRegistration | None]


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


@dataclass(slots=True, frozen=True)
class SetChunk(Set):
    """The Set of a chunk. `rows`: those that differ from the chunk before, None if it must be read again."""

    rows: Mapping[bytes, TopicRows] | None = None


class ChunkDraft:
    """Collects changes of partitions. `chunks` are not modified; `ops` are the operations that write the changes."""

    def __init__(self, chunks: LoadedChunks) -> None:
        self._chunks = chunks
        self._changed: dict[int, Chunk] = {}
        # What has changed in the chunks of `_changed`.
        self._rows: dict[int, dict[bytes, TopicRows]] = {}
        # The chunk that `add` uses, with the number of partitions that still fit in, and the next ones.
        self._room: tuple[int, int] = (0, 0)
        self._free = chunks.free()
        self._next_number = chunks.next_number

    def partitions(self) -> Iterator[tuple[int, bytes, int, PartitionRegistration]]:
        """Yield (chunk number, topic id, index, partition) of all partitions, with the changes so far."""
        return self._partitions(self._chunks.numbers() | self._changed.keys())

    def partitions_of(self, topic_id: bytes) -> Iterator[tuple[int, bytes, int, PartitionRegistration]]:
        """Yield the same for the partitions of a topic that existed before the draft."""
        for number in list(self._chunks.numbers_of(topic_id)):
            partitions = self._chunk(number).get(topic_id, {})
            for index, partition in list(partitions.items()):
                yield number, topic_id, index, partition

    def _partitions(self, numbers: Iterable[int]) -> Iterator[tuple[int, bytes, int, PartitionRegistration]]:
        for number in numbers:
            for topic_id, partitions in self._chunk(number).items():
                for index, partition in list(partitions.items()):
                    yield number, topic_id, index, partition

    def _chunk(self, number: int) -> Chunk:
        """Return a chunk with the changes so far."""
        changed = self._changed.get(number)
        return self._chunks.get(number) if changed is None else changed

    def find(self, topic_id: bytes, index: int) -> tuple[int, PartitionRegistration] | None:
        """Return a partition that existed before the draft, with the changes so far, and the number of its chunk."""
        number = self._chunks.find(topic_id, index)
        return None if number is None else (number, self._chunk(number)[topic_id][index])

    @property
    def max_bytes(self) -> int:
        """An upper estimate of the size of `ops`."""
        return MAX_CHUNK_BYTES * len(self._changed)

    def add(self, topic_id: bytes, index: int, partition: PartitionRegistration) -> None:
        """Add a new partition to a chunk that is not full, or to a new chunk."""
        number, count = self._room
        if count == 0:
            number, count = next(self._free, (self._next_number, CHUNK_PARTITIONS))
            if number == self._next_number:
                self._next_number += 1
        self._room = number, count - 1
        self._writable(number).setdefault(topic_id, {})[index] = partition
        self._rows[number].setdefault(topic_id, {})[index] = partition

    def replace(self, number: int, topic_id: bytes, index: int, partition: PartitionRegistration | None) -> None:
        """Replace a partition of chunk `number`; None: it stays as it is."""
        if partition is None:
            return
        self._writable(number)[topic_id][index] = partition
        self._rows[number].setdefault(topic_id, {})[index] = partition

    def remove(self, topic_id: bytes) -> None:
        """Remove all partitions of a topic."""
        for number in list(self._chunks.numbers_of(topic_id)):
            partitions = self._writable(number).pop(topic_id, {})
            self._rows[number][topic_id] = dict.fromkeys(partitions)

    def remove_from(self, topic_id: bytes, first: int) -> None:
        """Remove the partitions of a topic with the index `first` and higher ones."""
        for number in list(self._chunks.numbers_of(topic_id)):
            for index in [index for index in self._chunk(number).get(topic_id, {}) if index >= first]:
                chunk = self._writable(number)
                del chunk[topic_id][index]
                if not chunk[topic_id]:
                    del chunk[topic_id]
                self._rows[number].setdefault(topic_id, {})[index] = None

    def ops(self) -> list[Op]:
        ops: list[Op] = []
        for number, chunk in self._changed.items():
            path, data = chunk_path(number), encode_chunk(chunk)
            if number not in self._chunks:
                ops.append(Create(path, data))
                continue
            rows = self._rows[number]
            count, size = (sum(map(len, topics.values())) for topics in (rows, chunk))
            ops.append(SetChunk(path, data, rows=rows if count <= MAX_ROWS_SHARE * size else None))
        return ops

    def _writable(self, number: int) -> Chunk:
        """Return the chunk in this draft, a copy at its first change."""
        if number not in self._changed:
            chunk = self._chunks.get(number)
            self._changed[number] = {topic_id: dict(partitions) for topic_id, partitions in chunk.items()}
            self._rows[number] = {}
        return self._changed[number]
