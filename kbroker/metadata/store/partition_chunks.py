"""Changes of partition state, gathered into the few nodes that hold it."""

from collections.abc import Mapping

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.store.coordination import Create, Op, Set
from kbroker.metadata.store.znodes import CHUNK_PARTITIONS, Chunk, chunk_path, encode_chunk


class ChunkDraft:
    """A draft over the chunks as they are; `ops` writes what the draft changed."""

    def __init__(self, chunks: Mapping[int, Chunk]) -> None:
        self._before = chunks
        self._after: dict[int, Chunk] = {}
        # Chunks with room and how much.
        rooms = ((number, CHUNK_PARTITIONS - size(chunk)) for number, chunk in chunks.items())
        self._room = [(number, room) for number, room in rooms if room > 0]
        self._next = max(chunks, default=-1) + 1

    def add(self, topic_id: bytes, index: int, state: PartitionRegistration) -> None:
        """A new partition goes to a chunk with room, or starts a new chunk."""
        if not self._room:
            self._room.append((self._next, CHUNK_PARTITIONS))
            self._next += 1
        number, room = self._room.pop()
        if room > 1:
            self._room.append((number, room - 1))
        self._draft(number).setdefault(topic_id, {})[index] = state

    def replace(self, number: int, topic_id: bytes, index: int, state: PartitionRegistration) -> None:
        """`number` is the chunk that has the partition."""
        self._draft(number)[topic_id][index] = state

    def remove(self, topic_id: bytes) -> None:
        for number, chunk in self._before.items():
            if topic_id in chunk:
                del self._draft(number)[topic_id]

    def ops(self) -> list[Op]:
        return [
            Set(chunk_path(number), encode_chunk(chunk))
            if number in self._before
            else Create(chunk_path(number), encode_chunk(chunk))
            for number, chunk in self._after.items()
        ]

    def _draft(self, number: int) -> Chunk:
        if number not in self._after:
            before = self._before.get(number, {})
            self._after[number] = {topic_id: dict(states) for topic_id, states in before.items()}
        return self._after[number]


def size(chunk: Chunk) -> int:
    return sum(map(len, chunk.values()))
