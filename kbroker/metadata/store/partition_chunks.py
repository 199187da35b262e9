"""Partition state is stored in chunks, nodes with at most 128 partitions each. A draft changes several chunks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kbroker.coordination.interface import Create, Op, Set
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.store.loaded_chunks import LoadedChunks
from kbroker.metadata.store.znodes import CHUNK_PARTITIONS, Chunk, chunk_path, encode_chunk

# A chunk of topics with one partition each, with three replicas.
MAX_CHUNK_BYTES = 10_000
# A change includes the changed rows if they are at most this share of their chunk. So a multi grows by half at most.
MAX_ROWS_SHARE = 0.5

# The rows of a topic that have changed, by partition; None for one that was removed.
TopicRows = dict[int, PartitionRegistration | None]


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

    def replace(self, number: int, topic_id: bytes, index: int, partition: PartitionRegistration) -> None:
        """Replace a partition of chunk `number`."""
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
        return [
            SetChunk(chunk_path(number), encode_chunk(chunk), rows=self._small_rows(number))
            if number in self._chunks
            else Create(chunk_path(number), encode_chunk(chunk))
            for number, chunk in self._changed.items()
        ]

    def _small_rows(self, number: int) -> Mapping[bytes, TopicRows] | None:
        """Return the changed rows of a chunk, None if they are almost as large as the chunk."""
        rows = self._rows[number]
        count, size = (sum(map(len, topics.values())) for topics in (rows, self._changed[number]))
        return rows if count <= MAX_ROWS_SHARE * size else None

    def _writable(self, number: int) -> Chunk:
        """Return the chunk in this draft, a copy at its first change."""
        if number not in self._changed:
            chunk = self._chunks.get(number)
            self._changed[number] = {topic_id: dict(partitions) for topic_id, partitions in chunk.items()}
            self._rows[number] = {}
        return self._changed[number]
