"""Partition state is stored in chunks, nodes with at most 128 partitions each. A draft changes several chunks."""

from collections.abc import Iterator, Mapping

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.store.coordination import Create, Op, Set
from kbroker.metadata.store.znodes import CHUNK_PARTITIONS, Chunk, chunk_path, encode_chunk

# A chunk of topics with one partition each, with three replicas.
MAX_CHUNK_BYTES = 10_000


class ChunkDraft:
    """Collects changes of partitions. `chunks` are not modified; `ops` are the operations that write the changes."""

    def __init__(self, chunks: Mapping[int, Chunk]) -> None:
        self._chunks = chunks
        self._changed: dict[int, Chunk] = {}
        # (chunk, number of partitions that fit in) of the chunks that are not full; None before the first `add`.
        self._free: list[tuple[int, int]] | None = None
        self._next_number = max(chunks, default=-1) + 1

    def partitions(self) -> Iterator[tuple[int, bytes, int, PartitionRegistration]]:
        """Yield (chunk number, topic id, index, partition) of all partitions, with the changes so far."""
        for number in self._chunks.keys() | self._changed.keys():
            chunk = self._changed.get(number) or self._chunks[number]
            for topic_id, partitions in chunk.items():
                for index, partition in list(partitions.items()):
                    yield number, topic_id, index, partition

    def find(self, topic_id: bytes, index: int) -> tuple[int, PartitionRegistration] | None:
        """Return a partition, with the changes so far, and the number of its chunk."""
        for number, chunk in self._chunks.items():
            if index in chunk.get(topic_id, ()):
                return number, self._changed.get(number, chunk)[topic_id][index]
        return None

    @property
    def max_bytes(self) -> int:
        """About the size of `ops`, rather too much than too little."""
        return MAX_CHUNK_BYTES * len(self._changed)

    def add(self, topic_id: bytes, index: int, partition: PartitionRegistration) -> None:
        """Add a new partition to a chunk that is not full, or to a new chunk."""
        if self._free is None:
            free = ((number, CHUNK_PARTITIONS - partition_count(chunk)) for number, chunk in self._chunks.items())
            self._free = [(number, count) for number, count in free if count > 0]
        if not self._free:
            self._free.append((self._next_number, CHUNK_PARTITIONS))
            self._next_number += 1
        number, count = self._free.pop()
        if count > 1:
            self._free.append((number, count - 1))
        self._writable(number).setdefault(topic_id, {})[index] = partition

    def replace(self, number: int, topic_id: bytes, index: int, partition: PartitionRegistration) -> None:
        """Replace a partition of chunk `number`."""
        self._writable(number)[topic_id][index] = partition

    def remove(self, topic_id: bytes) -> None:
        """Remove all partitions of a topic."""
        for number, chunk in self._chunks.items():
            if topic_id in chunk:
                del self._writable(number)[topic_id]

    def ops(self) -> list[Op]:
        return [
            Set(chunk_path(number), encode_chunk(chunk))
            if number in self._chunks
            else Create(chunk_path(number), encode_chunk(chunk))
            for number, chunk in self._changed.items()
        ]

    def _writable(self, number: int) -> Chunk:
        """Return the chunk in this draft, a copy at its first change."""
        if number not in self._changed:
            chunk = self._chunks.get(number, {})
            self._changed[number] = {topic_id: dict(partitions) for topic_id, partitions in chunk.items()}
        return self._changed[number]


def partition_count(chunk: Chunk) -> int:
    return sum(map(len, chunk.values()))
