"""Reads the record batches of partitions from a broker, while the batches before them are compared."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.offsets import EARLIEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from kbroker.client.requests import BrokerError, check, partition_text
from kbroker.client.retries import Retries
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, MalformedError, known_error
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from protocol.records.batch import (
    MAGIC,
    MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    body_of,
    crc_of,
    iter_batch_records,
    iter_headers,
)
from protocol.records.compression import Buffer, decompress
from protocol.records.control import ABORT, parse_control_type

FETCH_BYTES = 8 << 20
WAIT_MS = 500
RETRY_FOR_S = 30.0
# The timestamp of the start of the local log, and the first version of ListOffsets that has it (KIP-405).
_EARLIEST_LOCAL, _FIRST_WITH_LOCAL = -4, 8


class Batch(NamedTuple):
    """A batch of records."""

    header: BatchHeader
    view: memoryview  # of all of it

    def body(self) -> Buffer:
        """Return the records, uncompressed. Raises MalformedError."""
        return decompress(self.header.codec, body_of(self.view, 0, self.header.size), MAX_DECOMPRESSED_BYTES)

    def check_crc(self) -> None:
        """Raises MalformedError."""
        if crc_of(self.view, 0, self.header.size) != self.header.crc & 0xFFFFFFFF:
            raise MalformedError(f"the broker's batch at offset {self.header.base_offset} has a wrong CRC")


class FetchedBatches(NamedTuple):
    """All batches with records between two offsets [start, end)."""

    start: int
    end: int
    batches: list[Batch]


def log_start_offsets(cluster: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log start offsets. A broker may serve older offsets from an archive, perhaps from this one."""
    has_local = cluster.version(ApiKey.LIST_OFFSETS) >= _FIRST_WITH_LOCAL
    return list_offsets(cluster, dict.fromkeys(partitions, _EARLIEST_LOCAL if has_local else EARLIEST))


def fetch_batches(
    cluster: ClusterClient, tp: TopicPartition, start: int, end: int, *, committed_only: bool
) -> Iterator[FetchedBatches]:
    """Read the offsets [start, end); the results follow each other without gaps, and the last may end after `end`.

    Offsets below the log start are skipped. Do not use `cluster` for anything else before the iterator ends. Raises
    BrokerError, OSError, MalformedError, after 30 s of retries if a retry may help.
    """
    retries: Retries | None = None
    is_pending = False
    try:
        while start < end:
            try:
                leader = cluster.leader(*tp)
                if not is_pending:
                    leader.send(_request(tp, start, committed_only))
                is_pending = False
                data = _partition_of(leader.receive(FetchResponse), tp)
                if known_error(data.error_code) == ErrorCode.OFFSET_OUT_OF_RANGE:
                    log_start = log_start_offsets(cluster, [tp])[tp]
                    if log_start <= start:
                        raise BrokerError(data.error_code, partition_text(tp))
                    yield FetchedBatches(start, min(log_start, end), [])
                    start = log_start
                    continue
                check(data.error_code, partition_text(tp))
                batches, next_offset = _parse(data, start, committed_only)
                if next_offset == start:
                    raise BrokerUnreachable(f"{partition_text(tp)} has no records from offset {start} on")
                if next_offset < end:
                    leader.send(_request(tp, next_offset, committed_only))
                    is_pending = True
            except (BrokerError, OSError) as error:
                is_pending = False
                retries = retries or Retries(cluster.on_wait, RETRY_FOR_S)
                is_final = isinstance(error, BrokerError) and not error.code.retriable
                if is_final or not retries.again(error):
                    raise
                cluster.reset()
                continue
            retries = None
            yield FetchedBatches(start, next_offset, batches)
            start = next_offset
    finally:
        if is_pending:
            cluster.reset()  # its connection has a response that nobody reads


def _request(tp: TopicPartition, offset: int, committed_only: bool) -> FetchRequest:
    partition = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    return FetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=READ_COMMITTED if committed_only else READ_UNCOMMITTED,
        topics=[FetchTopic(topic=tp.topic, partitions=[partition])],
    )


def _partition_of(response: FetchResponse, tp: TopicPartition) -> PartitionData:
    check(response.error_code, "fetch")
    for topic in response.responses:
        for row in topic.partitions:
            if (topic.topic, row.partition_index) == tp:
                return row
    raise BrokerUnreachable(f"the response to a fetch does not have {partition_text(tp)}")


def _parse(data: PartitionData, offset: int, committed_only: bool) -> tuple[list[Batch], int]:
    """Return the batches without control batches and, with `committed_only`, aborted ones; and the next offset."""
    view = memoryview(data.records or b"")
    aborted = sorted((row.first_offset, row.producer_id) for row in data.aborted_transactions or ())
    aborting: set[int] = set()
    batches, next_offset = [], offset
    for pos, header in iter_headers(view):
        if header.magic != MAGIC:
            raise MalformedError(f"the batch at offset {header.base_offset} has format v{header.magic}")
        batch = Batch(header, view[pos : pos + header.size])
        next_offset = max(next_offset, header.next_offset)
        while committed_only and aborted and aborted[0][0] <= header.last_offset:
            aborting.add(aborted.pop(0)[1])
        if header.is_control:
            if committed_only and any(
                parse_control_type(r.key) == ABORT for r in iter_batch_records(batch.view, header)
            ):
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting) and header.next_offset > offset:
            batches.append(batch)
    return batches, next_offset
