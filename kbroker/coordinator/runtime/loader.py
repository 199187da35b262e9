"""Loads the partition of an internal topic: reads and replays its records, then waits until they are committed.

    elected -> the replica leads in this leader epoch -> records below the log end offset are replayed
    -> the high watermark has reached that offset

A new leader's log may end with records that are not committed. They may still be lost if it fails now, so a coordinator
that responded on their basis, or sent the transaction markers that they call for, would contradict its successor.
"""

from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.internal_log import InternalLog, coordinator_error
from kbroker.coordinator.runtime.operation import CoordinatorShard
from kbroker.coordinator.runtime.write_event import complete
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import paced
from protocol.errors import NO_ERROR, ErrorCode, MalformedError
from protocol.records.batch import body_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.control import COMMIT, parse_control_type
from protocol.records.record import iter_records

# Coordinators write small batches. This bounds the memory that a corrupt one can use.
MAX_DECOMPRESSED_BYTES = 64 << 20
# While the replica does not lead yet (its log is being opened), the delay between checks doubles, up to the maximum.
# Then loading fails, and is repeated later.
FIRST_ROLE_DELAY_S, MAX_ROLE_DELAY_S = 0.001, 2.0

END_OF_LOG = -1


class LeadershipEnded(KafkaError):
    """The replica no longer leads, so there is nothing to load any more."""


class LoadedRecord(NamedTuple):
    """`producer_id` is -1 unless the record is transactional."""

    record: Any
    offset: int
    producer_id: int


class LoadedMarker(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    committed: bool


class PartitionLoader:
    """Loads one partition in one leader epoch. `max_bytes` returns the size of a read."""

    def __init__(
        self, environment: Environment, log: InternalLog, tp: TopicPartition, epoch: int, max_bytes: Callable[[], int]
    ) -> None:
        self._environment = environment
        self._log = log
        self._tp = tp
        self._epoch = epoch
        self._max_bytes = max_bytes
        self._stopped = False
        # What `load` waits for besides reads: the replica's role, then the commit.
        self._wait: Future[ErrorCode] | None = None

    def stop(self) -> None:
        """End the load: `load` returns soon. The leadership has ended."""
        self._stopped = True
        if self._wait is not None:
            complete(self._wait, NO_ERROR)

    async def load(self, shard: CoordinatorShard) -> None:
        """Replay the partition into `shard`, and wait until all of it is committed. Returns early if stopped.

        Raises KafkaError when the partition cannot be read, or the replica does not become the leader in time;
        LeadershipEnded if it no longer is the leader, as the metadata image will show, too.
        """
        end_offset = await self._leader_end_offset()
        if not self._stopped:
            await self._replay(shard)
        if not self._stopped:
            self._wait = self._environment.loop.create_future()
            self._log.on_committed(self._tp, end_offset, partial(complete, self._wait))
            error = await self._wait
            if error is not NO_ERROR and not self._stopped:
                kind = LeadershipEnded if error is ErrorCode.NOT_LEADER_OR_FOLLOWER else KafkaError
                raise kind(coordinator_error(error), f"{self._tp} is not committed: {error.name}")

    async def _leader_end_offset(self) -> int:
        """Return the log end offset, as soon as the replica leads in this epoch."""
        delay_s = FIRST_ROLE_DELAY_S
        while not self._stopped:
            try:
                return self._log.leader_end_offset(self._tp, self._epoch)
            except KafkaError as error:
                if delay_s > MAX_ROLE_DELAY_S or error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    message = error.message or error.code.name
                    raise KafkaError(coordinator_error(error.code), f"{self._tp} has no leader: {message}") from error
            self._wait = self._environment.loop.create_future()
            timer = self._environment.loop.call_later(delay_s, complete, self._wait, NO_ERROR)
            await self._wait
            timer.cancel()
            delay_s *= 2
        return 0

    async def _replay(self, shard: CoordinatorShard) -> None:
        offset = 0
        while not self._stopped:
            try:
                offset, items = await self._environment.offload(
                    read_chunk_blocking, self._log, self._tp, offset, self._max_bytes(), shard.decode
                )
            except (OSError, ImportError, MemoryError, LookupError, MalformedError) as error:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._tp} cannot be loaded: {error}") from error
            if offset == END_OF_LOG:
                return
            for item in paced(items):
                if self._stopped:
                    return
                if isinstance(item, LoadedMarker):
                    shard.replay_end_transaction(*item)
                else:
                    shard.replay(*item)


def read_chunk_blocking(
    log: InternalLog,
    tp: TopicPartition,
    offset: int,
    max_bytes: int,
    decode: Callable[[bytes | None, bytes | None], Any | None],
) -> tuple[int, list[LoadedRecord | LoadedMarker]]:
    """Return the next offset (END_OF_LOG at the end) and the content of a chunk of the log.

    Records for which `decode` returns None are omitted. Raises OSError, LookupError, MalformedError.
    """
    chunk = log.read_internal_blocking(tp, offset, max_bytes)
    items: list[LoadedRecord | LoadedMarker] = []
    next_offset = END_OF_LOG
    for pos, header in iter_headers(chunk):
        next_offset = header.next_offset
        body = decompress(header.codec, body_of(chunk, pos, header.size), MAX_DECOMPRESSED_BYTES)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for raw in iter_records(body, header.count, header.base_timestamp):
            if header.is_control:
                items.append(LoadedMarker(header.producer_id, parse_control_type(raw.key) == COMMIT))
                continue
            record = decode(raw.key, raw.value)
            if record is not None:
                items.append(LoadedRecord(record, header.base_offset + raw.offset_delta, producer_id))
    return next_offset, items
