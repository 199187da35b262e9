"""Reads records of partitions from their leaders, from given offsets on."""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerConnection
from kbroker.client.offsets import EARLIEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from kbroker.client.requests import BrokerError, by_topic, check, partition_text
from kbroker.client.retries import Retries
from kbroker.common import TopicPartition
from protocol.errors import ErrorCode, MalformedError, known_error
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from protocol.records.batch import MAX_DECOMPRESSED_BYTES, BatchHeader, crc_of, iter_batch_records, iter_headers
from protocol.records.control import ABORT, parse_control_type

MAX_BYTES, MAX_PARTITION_BYTES = 32 << 20, 4 << 20
# A poll waits for one leader after the other.
WAIT_MS, WAIT_MS_OF_SEVERAL = 500, 100
# Partitions that cannot be read are tried again for this time.
RETRY_FOR_S = 30.0
MAGIC = 2

CREATE_TIME, LOG_APPEND_TIME = 0, 1


class ConsumedRecord(NamedTuple):
    """A record and where it is from. `timestamp_type`: CREATE_TIME or LOG_APPEND_TIME."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


# Whether a record is wanted.
RecordFilter = Callable[[ConsumedRecord], bool]


class _FetchedPartition:
    """The records of a partition in one response. They are decoded batch by batch when they are taken."""

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        data: PartitionData,
        is_committed: bool,
        selects: RecordFilter | None,
    ) -> None:
        self.partition = partition
        self._selects = selects
        self._batches = self._decode(offset, data, is_committed)
        self._records: list[ConsumedRecord] = []
        # Behind all batches that were decoded.
        self._next_offset = offset

    def take(self, max_records: int) -> tuple[list[ConsumedRecord], int] | None:
        """Return at most so many records, and the offset to read on from; None at the end. Raises MalformedError."""
        if not self._records:
            found = next(self._batches, None)
            if found is None:
                return None
            self._records, self._next_offset = found
            if self._selects is not None:
                self._records = list(filter(self._selects, self._records))
        taken, self._records = self._records[:max_records], self._records[max_records:]
        return taken, self._records[0].offset if self._records else self._next_offset

    def _decode(
        self, offset: int, data: PartitionData, is_committed: bool
    ) -> Iterator[tuple[list[ConsumedRecord], int]]:
        """Iterate over the batches: their records from an offset on, and the next offset."""
        view = memoryview(data.records or b"")
        aborted = sorted((row.first_offset, row.producer_id) for row in data.aborted_transactions or ())
        aborting: set[int] = set()
        for pos, header in iter_headers(view):
            if header.magic != MAGIC:
                raise MalformedError(f"{self.partition} has batches of format v{header.magic}")
            if crc_of(view, pos, header.size) != header.crc & 0xFFFFFFFF:
                raise MalformedError(f"{self.partition}: the batch at offset {header.base_offset} has a wrong CRC")
            batch = view[pos : pos + header.size]
            while is_committed and aborted and aborted[0][0] <= header.last_offset:
                aborting.add(aborted.pop(0)[1])
            if header.is_control:
                if is_committed and _ends_aborted(batch, header):
                    aborting.discard(header.producer_id)
                yield [], header.next_offset
            elif header.is_transactional and header.producer_id in aborting:
                yield [], header.next_offset
            else:
                yield self._records_of(batch, header, offset), header.next_offset

    def _records_of(self, batch: memoryview, header: BatchHeader, first: int) -> list[ConsumedRecord]:
        topic, partition = self.partition
        base = header.base_offset
        append_time = header.max_timestamp if header.is_log_append_time else None
        kind = CREATE_TIME if append_time is None else LOG_APPEND_TIME
        # Faster than ConsumedRecord(...), which adds a Python frame.
        make = partial(tuple.__new__, ConsumedRecord)
        return [
            make(
                (
                    topic, partition, base + delta, timestamp if append_time is None else append_time, kind, key, value,
                    tuple([(name.decode(errors="replace"), content) for name, content in headers]) if headers else (),
                )
            )
            for _, delta, timestamp, key, value, headers in iter_batch_records(batch, header, MAX_DECOMPRESSED_BYTES)
            if base + delta >= first
        ]  # fmt: skip


def _ends_aborted(batch: memoryview, header: BatchHeader) -> bool:
    return any(parse_control_type(record.key) == ABORT for record in iter_batch_records(batch, header))


class PartitionConsumer:
    """`positions`: the next offset to read by partition. Callers may add, change and remove partitions."""

    def __init__(
        self,
        cluster: ClusterClient,
        positions: Mapping[TopicPartition, int],
        *,
        isolation_level: int = READ_UNCOMMITTED,
        selects: RecordFilter | None = None,
        max_partition_bytes: int = MAX_PARTITION_BYTES,
    ) -> None:
        """`selects`: which records `poll` returns, by default all. Positions pass the others.

        `max_partition_bytes`: of each fetch. A larger batch is fetched, too, if it is the first.
        """
        self._selects = selects
        self.positions = dict(positions)
        self._cluster = cluster
        self._isolation_level = isolation_level
        self._max_partition_bytes = max_partition_bytes
        self._fetched: deque[_FetchedPartition] = deque()
        # While partitions cannot be read.
        self._retries: Retries | None = None

    def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions instead, from these offsets on."""
        self.positions = dict(positions)
        self._fetched.clear()

    def poll(self, max_records: int) -> list[ConsumedRecord]:
        """Return at most `max_records`, in order of offsets within each partition. Waits at most about half a second.

        Raises BrokerError, BrokerUnreachable, MalformedError.
        """
        if not self._fetched:
            self._fetch(self.positions)
        polled: list[ConsumedRecord] = []
        while self._fetched and len(polled) < max_records:
            fetched = self._fetched[0]
            taken = fetched.take(max_records - len(polled)) if fetched.partition in self.positions else None
            if taken is None:
                self._fetched.popleft()
                continue
            polled += taken[0]
            self.positions[fetched.partition] = taken[1]
        return polled

    def poll_each(self, partitions: Collection[TopicPartition], max_records: int) -> list[ConsumedRecord]:
        """Return at most `max_records` of each of these partitions. Other fetched records stay for later polls.

        Waits and raises as `poll`.
        """
        missing = set(partitions) - {fetched.partition for fetched in self._fetched}
        if missing:
            self._fetch(missing)
        polled: list[ConsumedRecord] = []
        for fetched in [each for each in self._fetched if each.partition in partitions]:
            most = len(polled) + max_records
            while len(polled) < most:
                taken = fetched.take(most - len(polled))
                if taken is None:
                    self._fetched.remove(fetched)
                    break
                polled += taken[0]
                self.positions[fetched.partition] = taken[1]
        return polled

    def _fetch(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch from all leaders. Failures are tried again by the next poll, for RETRY_FOR_S."""
        failure: BrokerError | OSError | None = None
        by_leader: dict[int, tuple[BrokerConnection, list[TopicPartition]]] = {}
        for partition in partitions:
            try:
                leader = self._cluster.leader(*partition)
                by_leader.setdefault(id(leader), (leader, []))[1].append(partition)
            except (BrokerError, OSError) as error:
                failure = error
        wait_ms = WAIT_MS if len(by_leader) == 1 else WAIT_MS_OF_SEVERAL
        sent: list[BrokerConnection] = []
        for leader, led in by_leader.values():
            try:
                leader.send(self._request(led, wait_ms))
                sent.append(leader)
            except OSError as error:
                failure = error
        responses: list[FetchResponse] = []
        for leader in sent:
            try:
                responses.append(leader.receive(FetchResponse))
            except OSError as error:
                failure = error
        for response in responses:
            try:
                check(response.error_code, "fetch")
                self._add(response)
            except (BrokerError, OSError) as error:
                failure = failure or error
        self._note(failure)

    def _request(self, partitions: list[TopicPartition], wait_ms: int) -> FetchRequest:
        topics = [
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=index,
                        fetch_offset=self.positions[TopicPartition(topic, index)],
                        partition_max_bytes=self._max_partition_bytes,
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in by_topic(partitions).items()
        ]
        return FetchRequest(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=MAX_BYTES, isolation_level=self._isolation_level, topics=topics
        )

    def _add(self, response: FetchResponse) -> None:
        """Keep what was fetched. Raises BrokerError for the last of the partitions with an error, after the others."""
        failure: BrokerError | None = None
        for topic in response.responses:
            for row in topic.partitions:
                partition = TopicPartition(topic.topic, row.partition_index)
                code = known_error(row.error_code)
                if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    # Retention has deleted what was to be read.
                    self.positions.update(list_offsets(self._cluster, {partition: EARLIEST}))
                elif code:
                    failure = BrokerError(code, partition_text(partition))
                elif row.records:
                    is_committed = self._isolation_level == READ_COMMITTED
                    position = self.positions[partition]
                    self._fetched.append(_FetchedPartition(partition, position, row, is_committed, self._selects))
                    # The next response begins with the partitions of which this one has nothing.
                    self.positions[partition] = self.positions.pop(partition)
        if failure is not None:
            raise failure

    def _note(self, failure: BrokerError | OSError | None) -> None:
        """Raise a failure that is final, or lasts; before the next poll, look the leaders up again."""
        if failure is None:
            self._retries = None
            return
        self._retries = self._retries or Retries(self._cluster.on_wait, RETRY_FOR_S)
        is_final = isinstance(failure, BrokerError) and not failure.code.retriable
        if is_final or not self._retries.again(failure):
            raise failure
        if isinstance(failure, OSError):
            self._cluster.reset()
        self._cluster.forget_topics()
