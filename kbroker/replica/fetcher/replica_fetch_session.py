"""The follower's side of Fetch: its session (KIP-227), and the check of the batches that a leader has sent."""

from collections.abc import Iterable

from protocol.errors import MalformedError
from protocol.fast.replica_fetch import ReplicaFetchPartition
from protocol.records.batch import MAGIC, BatchHeader, crc_of, iter_headers

INITIAL_EPOCH = 0
MAX_EPOCH = 2**31 - 1
NO_SESSION = 0

# The id of the topic, and the index of the partition.
PartitionKey = tuple[bytes, int]


class ReplicaFetchSession:
    """The session of one fetcher at its leader. `id`: NO_SESSION until the leader has created one."""

    __slots__ = ("_forgotten", "_members", "epoch", "id")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        # The partitions of the session at the leader, once it has the requests so far.
        self._members: set[PartitionKey] = set()
        self._forgotten: dict[PartitionKey, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that the leader could send without further partitions."""
        return not self._members

    def forget(self, key: PartitionKey) -> None:
        """Remove a partition from the session with the next request."""
        if key in self._members:
            self._members.discard(key)
            self._forgotten[key] = None

    def add(
        self, partitions: Iterable[tuple[PartitionKey, ReplicaFetchPartition]]
    ) -> tuple[list[tuple[bytes, list[ReplicaFetchPartition]]], list[tuple[bytes, list[int]]]]:
        """Add partitions, or change them. Returns the topics and the forgotten topics of the next request."""
        topics: dict[bytes, list[ReplicaFetchPartition]] = {}
        for key, row in partitions:
            self._members.add(key)
            # A leader applies the forgotten partitions last, so it would remove one that is also in the topics.
            self._forgotten.pop(key, None)
            topics.setdefault(key[0], []).append(row)
        forgotten: dict[bytes, list[int]] = {}
        if self._forgotten:
            for topic_id, index in self._forgotten:
                forgotten.setdefault(topic_id, []).append(index)
            self._forgotten.clear()
        return list(topics.items()), list(forgotten.items())

    def begin_request(self) -> tuple[int, int]:
        """Return the session id and the epoch of the next request."""
        epoch = self.epoch
        self.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return self.id, epoch

    def on_response(self, session_id: int) -> bool:
        """Record the session of a response without an error. Returns False if the leader keeps no session.

        A leader without memory for the session, or one whose session became empty, responds without an id. The next
        request must then name all partitions.
        """
        self.id = session_id
        return session_id != NO_SESSION

    def reset(self, *, keep_id: bool) -> None:
        """Create another session with the next request. With `keep_id` that request closes the current one."""
        if not keep_id:
            self.id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._members.clear()
        self._forgotten.clear()


class CorruptBatchesError(Exception):
    """The leader's response for a partition contains bytes that are not the batches to append."""


def check_batches(records: memoryview, fetch_offset: int, leader_epoch: int) -> list[BatchHeader]:
    """Return the headers of the complete batches in a leader's response, in order. Nothing damaged reaches the log.

    `fetch_offset`: the offset that was fetched. `leader_epoch`: the leader's epoch; no batch may be of a later one, and
    none of an earlier epoch than the batch before it. Gaps between offsets are valid: the log may be compacted. An
    incomplete batch at the end is ignored. Raises CorruptBatchesError.
    """
    headers: list[BatchHeader] = []
    next_offset, epoch = fetch_offset, -1
    try:
        for position, header in iter_headers(records):
            if header.magic != MAGIC:
                raise CorruptBatchesError(f"a batch at offset {next_offset} has the format {header.magic}")
            if header.crc != crc_of(records, position, header.size):
                raise CorruptBatchesError(f"a batch at offset {next_offset} has a wrong CRC")
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise CorruptBatchesError(f"a batch at offset {header.base_offset} instead of {next_offset}")
            if not epoch <= header.leader_epoch <= leader_epoch:
                raise CorruptBatchesError(f"a batch of epoch {header.leader_epoch} at offset {next_offset}")
            next_offset, epoch = header.next_offset, header.leader_epoch
            headers.append(header)
    except MalformedError as error:
        raise CorruptBatchesError(str(error)) from error
    if records and not headers:
        raise CorruptBatchesError(f"an incomplete batch of {len(records)} bytes at offset {fetch_offset}")
    return headers
