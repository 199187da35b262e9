"""Cache of encoded Fetch responses, which are sent again to requests with the same bytes.

Consumers of several groups read the same offsets of a partition one after another, and clients without fetch sessions
(librdkafka and others) then send equal requests. From the second one on, the response with its records is kept: a
further one costs neither a read of the file nor decoding and encoding.

A response is kept only if it follows from the request and from what `_state_of` returns. It is sent again only while
that is unchanged, so every change of the partition that could change the response also ends its use: appends that
advance the high watermark, deleted records, truncation, compaction, configs, the leader, and removal of the topic. An
entry has no reference to the partition, so that it does not keep files of deleted segments open.
"""

from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from protocol.fast.fetch import Buffers, FetchRequest, FetchResponse, TopicKey

# The most bytes of requests and responses, and the most entries.
MAX_BYTES = 4 * 1024 * 1024
MAX_ENTRIES = 1024
# Larger responses are not kept. Most of those are sent from the page cache without a copy anyway.
MAX_RESPONSE_BYTES = 128 * 1024
# The approximate size of an entry without its request and response.
_ENTRY_OVERHEAD = 400
# The number of recent requests of which a second one is recognized; a power of two.
_SEEN = 512


class CachedResponse(NamedTuple):
    """A response with records of one partition. `body`: the encoded response, with `records_bytes` bytes of records.

    `state`: the result of `_state_of` when the records were read. `size`: the bytes of the whole entry.
    """

    key: TopicKey
    partition_index: int
    state: tuple[object, ...]
    body: list[Buffer]
    records_bytes: int
    size: int


class FetchResponseCache:
    """Responses by the bytes of their request: API key, version and body. `size`: bytes, at most MAX_BYTES."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self.size = 0
        self._replicas = replicas
        # In the order in which they were added.
        self._entries: dict[bytes, CachedResponse] = {}
        # The hashes of recent requests, in a table of fixed size: most requests are never repeated.
        self._seen = [0] * _SEEN

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, request_bytes: bytes) -> CachedResponse | None:
        """Return the response to a request if it is in the cache and still valid."""
        entry = self._entries.get(request_bytes)
        if entry is None:
            return None
        partition = self._replicas.get(entry.key, entry.partition_index)
        if partition is None or _state_of(partition) != entry.state:
            self._remove(request_bytes)
            return None
        return entry

    def add(self, request_bytes: bytes, request: FetchRequest, response: FetchResponse, body: Buffers) -> None:
        """Keep the response to a request, if it is the second such request. The records have just been read."""
        if request.session_epoch != -1 or request.session_id or request.replica_id >= 0 or request.rack_id:
            return
        hashed = hash(request_bytes)
        slot = hashed & _SEEN - 1
        if self._seen[slot] != hashed:
            self._seen[slot] = hashed
            return
        if response.error_code or len(request.topics) != 1 or len(response.topics) != 1:
            return
        (key, requested), (_, results) = request.topics[0], response.topics[0]
        if len(requested) != 1 or len(results) != 1:
            return
        result = results[0]
        records_bytes = len(result.records)
        # With a last fetched epoch the response depends on the history of leader epochs.
        if result.error_code or not records_bytes or result.diverging is not None or requested[0][3] >= 0:
            return
        partition = self._replicas.get(key, result.partition)
        if partition is None or not partition.is_leader or partition.log.health.offline is not None:
            return
        if partition.read_filter is not None or requested[0][2] < partition.log.log_start_offset:
            # What the filter drops may also depend on the time, and history on the archive.
            return
        if sum(map(len, body)) > MAX_RESPONSE_BYTES:
            return
        # The records are in a buffer that is reused.
        kept: list[Buffer] = [bytes(part) for part in body if isinstance(part, Buffer)]
        if len(kept) != len(body):
            # A file slice.
            return
        size = len(request_bytes) + sum(map(len, kept)) + _ENTRY_OVERHEAD
        self._remove(request_bytes)
        self._entries[request_bytes] = CachedResponse(
            key, result.partition, _state_of(partition), kept, records_bytes, size
        )
        self.size += size
        while self.size > MAX_BYTES or len(self._entries) > MAX_ENTRIES:
            self._remove(next(iter(self._entries)))

    def _remove(self, request_bytes: bytes) -> None:
        entry = self._entries.pop(request_bytes, None)
        if entry is not None:
            self.size -= entry.size


def _state_of(partition: Partition) -> tuple[object, ...]:
    """Return everything that a response with records of a partition depends on, besides its request."""
    log, state = partition.log, partition.state
    return (
        log.contents, state.high_watermark, partition.last_stable_offset, log.log_start_offset, state.leader_epoch,
        partition.is_leader, log.health.offline, log.config, partition.read_filter,
    )  # fmt: skip
