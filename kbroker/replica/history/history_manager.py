"""The history of the partitions on this broker: what their archives have, and reads of it for consumers.

Reads do not wait. A fetch of what is not in memory begins a read in the background, and its session is notified at the
end as of new records: so a slow archive delays no other partition of the request. The range after the one that a
consumer gets is read ahead.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.common import KafkaError, uuid_text
from kbroker.replica.history.history_cache import HistoryCache, HistoryKey, HistoryRange, make_range
from kbroker.replica.history.history_client import ABSENT, DAMAGED, REFUSED, HistoryCallError, HistoryClient
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.log_reads import timestamp_at
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import MAX_DECOMPRESSED_BYTES, iter_headers

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.replica.fetch.fetch_session import FetchPartition
    from kbroker.replica.fetch.read_filter import ReadFilter
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Clock, Environment

log = EventLogger("kbroker.history")

# The ranges that are kept for further fetches, in bytes, and for how long.
MAX_CACHE_BYTES = 64 << 20
EXPIRY_MS = 10_000
# What is asked for at a time, at most, whatever the consumer allows; a larger batch comes alone.
MAX_READ_BYTES = 4 << 20
# What a read with a filter that drops everything reads before it gives the consumer a new position.
MAX_FILTERED_BYTES = 32 << 20
# The reads that may begin. Fetches of others find theirs when some of these have ended.
MAX_READS = 64
# How old the bounds of an archive may be for reads, and for retention. What is archived only grows.
BOUNDS_AGE_MS, RETENTION_AGE_MS = 10_000, 5_000
# For how long a failed read is not tried again.
FAILURE_MS = 2_000


class ArchivedTopic(NamedTuple):
    """Where the archive of a topic is: `kbroker.archive.table`."""

    location: str
    topic: str


def archive_of(partition: Partition) -> ArchivedTopic | None:
    location, separator, topic = partition.log.config.kbroker_archive_table.rpartition("#")
    if not separator:
        location, topic = topic, partition.tp.topic
    return ArchivedTopic(location, topic) if location else None


class ArchiveBounds(NamedTuple):
    """What an archive has of a topic. `partitions`: the first archived offset that is left, and the next to archive.

    `commit_ms`: the wall-clock time of the last commit. `read_ms`: when this was read (monotonic).
    """

    topic_id: str
    committed_only: bool
    commit_ms: int
    partitions: Mapping[int, tuple[int, int]]
    read_ms: int


class Unarchived(NamedTuple):
    """The first offset that is not archived, the committed records from there on, and the timestamp of the first.

    `timestamp`: the largest of its batch; -1 if there is no such record.
    """

    offset: int
    records: int
    timestamp: int


class FoundOffset(NamedTuple):
    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(slots=True)
class _Read:
    """A read in progress, and the fetches that wait for it."""

    waiting: dict[FetchPartition, None] = field(default_factory=dict)


def error_code(error: HistoryCallError) -> ErrorCode:
    """Return the code for clients. After OFFSET_OUT_OF_RANGE they reset their offset, after the other they retry."""
    is_gone = error.kind in (ABSENT, REFUSED)
    return ErrorCode.OFFSET_OUT_OF_RANGE if is_gone else ErrorCode.KAFKA_STORAGE_ERROR


class HistoryManager:
    """`bytes_out`: bytes of records from archives in responses to consumers. `lags`: those that were measured last."""

    def __init__(self, environment: Environment) -> None:
        self.client = HistoryClient(environment)
        self.cache = HistoryCache(MAX_CACHE_BYTES, EXPIRY_MS)
        self.bytes_out = 0
        self.lags: dict[Partition, Unarchived] = {}
        self._is_measuring = False
        self._environment = environment
        self._clock: Clock = environment.clock
        self._bounds: dict[ArchivedTopic, ArchiveBounds] = {}
        self._asking: dict[ArchivedTopic, list[Future[ArchiveBounds]]] = {}
        self._logged: dict[ArchivedTopic, str] = {}
        self._reads: dict[tuple[HistoryKey, int], _Read] = {}
        self._failures: dict[tuple[HistoryKey, int], tuple[HistoryCallError, int]] = {}
        self._tasks: set[Task[None]] = set()

    async def stop(self) -> None:
        await self.client.stop()

    # What the archives have.

    async def bounds(self, partition: Partition, max_age_ms: int, *, read_committed: bool = False) -> tuple[int, int]:
        """Return the first offset of a partition that its archive has, and the next one that it will archive.

        Raises HistoryCallError, also if the archive is another topic's, or has records that `read_committed` must not
        see.
        """
        archived = archive_of(partition)
        if archived is None:
            raise HistoryCallError(ABSENT, "the topic has no kbroker.archive.table")
        bounds = self._bounds[archived] if self._is_known(archived, max_age_ms) else await self._ask(archived)
        return _partition_bounds(partition, archived, bounds, read_committed)

    def _is_known(self, archived: ArchivedTopic, max_age_ms: int) -> bool:
        bounds = self._bounds.get(archived)
        return bounds is not None and self._clock.mono_ms() - bounds.read_ms < max_age_ms

    def known_bounds(self, partition: Partition) -> tuple[int, int] | None:
        """Return the bounds that were read last; None if they are unknown."""
        archived = archive_of(partition)
        bounds = None if archived is None else self._bounds.get(archived)
        try:
            return bounds and archived and _partition_bounds(partition, archived, bounds, False)
        except HistoryCallError:
            return None

    async def refresh(self, partitions: Iterable[Partition]) -> None:
        """Read the bounds of these partitions' archives. Those that cannot be read are unknown afterwards."""
        for archived in dict.fromkeys(map(archive_of, partitions)):
            if archived is not None and not self._is_known(archived, RETENTION_AGE_MS):
                with suppress(HistoryCallError):
                    await self._ask(archived)

    async def _ask(self, archived: ArchivedTopic) -> ArchiveBounds:
        """Read the bounds. Callers at the same time share the call."""
        waiter: Future[ArchiveBounds] = self._environment.loop.create_future()
        waiters = self._asking.setdefault(archived, [])
        waiters.append(waiter)
        if len(waiters) == 1:
            self._start(self._read_bounds(archived))
        return await waiter

    async def _read_bounds(self, archived: ArchivedTopic) -> None:
        error, read_ms = None, self._clock.mono_ms()
        try:
            header, _ = await self.client.call("bounds", archive=archived.location, topic=archived.topic)
            self._bounds[archived] = _decode_bounds(header, read_ms)
        except HistoryCallError as raised:
            self._bounds.pop(archived, None)
            error = raised
        self._log_change(archived, "" if error is None else error.text)
        for waiter in self._asking.pop(archived):
            if waiter.done():
                # Its request was abandoned.
                continue
            if error is None:
                waiter.set_result(self._bounds[archived])
            else:
                waiter.set_exception(error)

    def _log_change(self, archived: ArchivedTopic, failure: str) -> None:
        """Log when an archive can no longer be read, or can be read again."""
        if self._logged.get(archived, "") != failure:
            self._logged[archived] = failure
            if failure:
                log.warning("archive not readable", topic=archived.topic, reason=failure)
            else:
                log.info("the archive is readable again", topic=archived.topic, location=archived.location)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._environment.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def first_unarchived(self, partition: Partition) -> Unarchived:
        """Return what is committed and not archived yet. Raises HistoryCallError, KafkaError."""
        _, end = await self.bounds(partition, BOUNDS_AGE_MS)
        records = partition.high_watermark - end
        if records <= 0:
            return Unarchived(end, 0, -1)
        offset = max(end, partition.log.log_start_offset)
        return Unarchived(end, records, await self._environment.offload(timestamp_at, partition.log, offset, True))

    def measure_lags(self, partitions: Sequence[Partition]) -> None:
        """Measure in the background how far the archives of these partitions lag behind."""
        if not partitions:
            self.lags = {}
        elif not self._is_measuring:
            self._is_measuring = True
            self._start(self._measure_lags(partitions))

    async def _measure_lags(self, partitions: Sequence[Partition]) -> None:
        lags = {}
        for partition in partitions:
            try:
                lags[partition] = await self.first_unarchived(partition)
            except (HistoryCallError, KafkaError):
                # The metrics say how many are unknown.
                continue
        self.lags, self._is_measuring = lags, False

    async def find_offset(self, partition: Partition, timestamp: int, read_committed: bool) -> FoundOffset | None:
        """Return the first archived record below the log that is not older; None without one.

        Raises HistoryCallError.
        """
        await self.bounds(partition, BOUNDS_AGE_MS, read_committed=read_committed)
        archived = archive_of(partition)
        assert archived is not None
        header, _ = await self.client.call(
            "offset_for_time",
            archive=archived.location,
            topic=archived.topic,
            partition=partition.tp.partition,
            timestamp=timestamp,
        )
        try:
            if not 0 <= int(header["offset"]) < partition.log.log_start_offset:
                return None
            return FoundOffset(int(header["offset"]), int(header["found_timestamp"]), int(header["leader_epoch"]))
        except (KeyError, ValueError, TypeError) as error:
            raise HistoryCallError(DAMAGED, f"the history process has sent nonsense: {error!r}") from None

    # Reads for fetches.

    def find(
        self, partition: Partition, fetched: FetchPartition, key: HistoryKey, offset: int
    ) -> HistoryRange | HistoryCallError | None:
        """Return the records from an offset on, or why there are none; None while they are read.

        The session of `fetched` is notified at the end of the read.
        """
        now_ms = self._clock.mono_ms()
        found = self.cache.find(key, offset, now_ms)
        if found is not None:
            if found.end < partition.log.log_start_offset and self.cache.find(key, found.end, now_ms) is None:
                self._begin(partition, key, found.end, fetched.max_bytes)
            return found
        failure = self._failures.get((key, offset))
        if failure is not None and now_ms < failure[1]:
            return failure[0]
        read = self._begin(partition, key, offset, fetched.max_bytes)
        if read is not None:
            read.waiting[fetched] = None
        return None

    def _begin(self, partition: Partition, key: HistoryKey, offset: int, max_bytes: int) -> _Read | None:
        read = self._reads.get((key, offset))
        if read is None and len(self._reads) < MAX_READS:
            read = self._reads[key, offset] = _Read()
            max_bytes = min(max(max_bytes, 1), MAX_READ_BYTES)
            self._start(self._read(partition, key, offset, max_bytes, read))
        return read

    async def _read(self, partition: Partition, key: HistoryKey, offset: int, max_bytes: int, read: _Read) -> None:
        try:
            found = await self._range(partition, key, offset, max_bytes)
            self.cache.add(key, found, self._clock.mono_ms())
            self._failures.pop((key, offset), None)
            size = len(found.records)
        except HistoryCallError as error:
            now_ms, size = self._clock.mono_ms(), 0
            self._failures = {each: failure for each, failure in self._failures.items() if now_ms < failure[1]}
            self._failures[key, offset] = error, now_ms + FAILURE_MS
        finally:
            del self._reads[key, offset]
        for fetched in read.waiting:
            session = fetched.session
            if session.partitions.get((fetched.key, fetched.index)) is fetched:
                session.ready[fetched] = None
                if session.waiter is not None:
                    session.waiter.gained(size)

    async def _range(self, partition: Partition, key: HistoryKey, offset: int, max_bytes: int) -> HistoryRange:
        """Read from the archive. With a read filter until it keeps something, or MAX_FILTERED_BYTES were read."""
        start, _ = await self.bounds(partition, BOUNDS_AGE_MS, read_committed=key.read_committed)
        if offset < start:
            raise HistoryCallError(ABSENT, f"the archive begins at offset {start}")
        archived, position, seen = archive_of(partition), offset, 0
        assert archived is not None
        while True:
            header, body = await self.client.call(
                "fetch",
                archive=archived.location,
                topic=archived.topic,
                partition=partition.tp.partition,
                offset=position,
                end=max(partition.log.log_start_offset, position + 1),
                max_bytes=max_bytes,
            )
            seen += len(body)
            try:
                found = make_range(position, int(header["next_offset"]), body)
                if key.read_filter is not None:
                    now_ms = self._clock.now_ms()
                    body = await self._environment.offload(_filter_blocking, key.read_filter, body, now_ms)
                    found = make_range(position, found.end, body)
            except (KeyError, ValueError, TypeError, MalformedError) as error:
                raise HistoryCallError(DAMAGED, f"the records from offset {position} on are damaged: {error}") from None
            position = found.end
            if body or position >= partition.log.log_start_offset or seen >= MAX_FILTERED_BYTES:
                return found._replace(start=offset)


def _decode_bounds(header: Mapping[str, object], read_ms: int) -> ArchiveBounds:
    try:
        rows = header["partitions"]
        assert isinstance(rows, Mapping)
        partitions = {int(index): (int(row["start"]), int(row["end"])) for index, row in rows.items()}
        committed_only, commit_ms = bool(header["committed_only"]), header["commit_ms"]
        assert isinstance(commit_ms, int)
        return ArchiveBounds(str(header["topic_id"]), committed_only, commit_ms, partitions, read_ms)
    except (KeyError, ValueError, TypeError, AssertionError) as error:
        raise HistoryCallError(DAMAGED, f"the history process has sent nonsense: {error!r}") from None


def _partition_bounds(
    partition: Partition, archived: ArchivedTopic, bounds: ArchiveBounds, read_committed: bool
) -> tuple[int, int]:
    """Raises HistoryCallError if the partition's consumers may not see the archive."""
    topic_id = uuid_text(partition.topic_id)
    if bounds.topic_id != topic_id:
        text = f"{archived.location} has another topic named {archived.topic} (its id is {bounds.topic_id or 'unknown'}"
        raise HistoryCallError(REFUSED, f"{text}, that of {partition.tp.topic} is {topic_id})")
    if read_committed and not bounds.committed_only:
        text = "also has records of transactions that were aborted, so consumers with read_committed cannot read it"
        raise HistoryCallError(REFUSED, f"{archived.location} {text}")
    found = bounds.partitions.get(partition.tp.partition)
    if found is None:
        raise HistoryCallError(ABSENT, f"{archived.location} does not have partition {partition.tp}")
    return found


def _filter_blocking(read_filter: ReadFilter, records: bytes, now_ms: int) -> bytes:
    """Return what a filter keeps of complete batches. Raises MalformedError."""
    view, kept = memoryview(records), []
    for position, header in iter_headers(view):
        batch = view[position : position + header.size]
        visible = read_filter.filter_batch(batch, header, now_ms, MAX_DECOMPRESSED_BYTES)
        if visible is not None:
            kept.append(visible)
    return b"".join(kept)
