"""Forwards the hidden batches of one closing partition while this broker leads it.

It reads the log as a read_committed consumer does, and has one request in flight, so that the order is kept. When the
partition has retired, no consumer reads it any more, and the forwarder deletes the records that it has forwarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import KafkaError
from kbroker.queues.closing.forwarded_batches import (
    AbortedRange,
    forwarded_copy,
    forwarder_id,
    must_forward,
    position_of,
    progress_batch,
    start_of_epoch,
)
from kbroker.queues.waits import Wakeup
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.log_reads import find_aborted_transactions, read_blocking
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers, parse_header

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.metadata.image import Forwarding
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment

event_log = EventLogger("kbroker.closing")

# Sends batches to a partition (topic id, index). Returns the position of the last batch that is stored there.
Send = Callable[[bytes, int, bytes], Awaitable[int]]

READ_BYTES = 1 << 20
RETRY_S = 0.2
# The shortest interval at which the progress is stored. A new leader forwards again what was forwarded since, and the
# target partition drops the duplicates.
PROGRESS_INTERVAL_S = 1.0
# The wait for further batches, unless an append wakes the forwarder.
IDLE_S = 0.5
# These end without an operator: they are retried and not logged.
EXPECTED_ERRORS = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION,
)  # fmt: skip


class _Chunk(NamedTuple):
    """Copies of batches to forward, and the offset where the next read begins."""

    batches: list[bytearray]
    next_offset: int


class Forwarder:
    """`position`: everything below it is forwarded or need not be; -1 until the first step."""

    def __init__(self, environment: Environment, partition: Partition, forwarding: Forwarding, send: Send) -> None:
        self.forwarding = forwarding
        self.position = -1
        self._environment = environment
        self._partition = partition
        self._log = partition.log
        self._producer_id = forwarder_id(partition.tp.partition, forwarding.first_epoch)
        self._send = send
        self._task: Task[None] | None = None
        self._wakeup = Wakeup(environment.loop)
        self._is_stopped = False
        self._watched = -1
        # Whether `position` is higher than the stored progress, and the loop time at which it may be stored.
        self._has_progress = False
        self._next_progress_s = 0.0

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._run())

    def stop(self) -> None:
        """Stop forwarding. A request in flight may still be handled, and the next forwarder repeats it: no harm."""
        self._is_stopped = True
        self.wake()

    def wake(self) -> None:
        """Continue now, because something was appended or has changed."""
        self._wakeup.wake()

    @property
    def is_active(self) -> bool:
        return not self._is_stopped and self._partition.is_leader and not self._partition.is_closed

    @property
    def deletion_limit(self) -> int:
        """The offset below which records may be deleted. Records that are not forwarded must stay."""
        limit = max(self.position, self._log.log_start_offset)
        if not self.forwarding.is_active and limit >= self._cancelled_at:
            return self._log.log_end_offset
        return limit

    # The task.

    async def _run(self) -> None:
        while self.is_active:
            wait_s = 0.0
            try:
                wait_s = await self._step()
            except KafkaError as error:
                wait_s = RETRY_S
                if error.code not in EXPECTED_ERRORS:
                    event_log.warning("forwarding must wait", partition=self._partition.tp, reason=error)
            except Exception as error:
                wait_s = IDLE_S
                event_log.failure("forwarding failed", error, partition=self._partition.tp)
            if wait_s and not self._is_stopped:
                await self._wakeup.wait(wait_s)
            else:
                await self._environment.yield_to_loop()

    async def _step(self) -> float:
        """Forward some batches. Returns the seconds until the next step, 0 if there is more to do now."""
        log, start = self._log, self._start
        self.position = max(self.position, start, log.log_start_offset, self._stored_position)
        end = self._end
        if self.position >= end:
            self._delete_forwarded()
            self._store_progress()
            self._watch_commit()
            return IDLE_S
        chunk = await self._environment.offload(self._read_blocking, self.position, end)
        if not self.is_active:
            return IDLE_S
        if chunk.batches:
            records = b"".join(chunk.batches)
            last = await self._send(self._partition.topic_id, self.forwarding.target, records)
            # A former leader may have forwarded more than this.
            self.position = max(chunk.next_offset, min(last + 1, end))
            self._has_progress = True
        else:
            self.position = chunk.next_offset
        self._delete_forwarded()
        self._store_progress()
        return 0.0

    @property
    def _start(self) -> int:
        log = self._log
        return start_of_epoch(log.epochs, self.forwarding.first_epoch, log.log_start_offset, log.log_end_offset)

    @property
    def _end(self) -> int:
        """The offset up to which batches can be forwarded: the last stable offset, or the end of the closing."""
        end = self._partition.last_stable_offset
        return end if self.forwarding.is_active else min(end, self._cancelled_at)

    @property
    def _cancelled_at(self) -> int:
        """The offset from which nothing is hidden any more, because the closing was cancelled."""
        log = self._log
        return start_of_epoch(log.epochs, self.forwarding.end_epoch, log.log_start_offset, log.log_end_offset)

    def _read_blocking(self, position: int, end: int) -> _Chunk:
        log = self._log
        data = read_blocking(log, position, READ_BYTES, end)
        aborted = [
            AbortedRange(row.producer_id, row.first_offset, row.last_offset)
            for row in find_aborted_transactions(log, position, len(data), True) or ()
        ]
        batches: list[bytearray] = []
        size, limit = 0, min(READ_BYTES, log.config.segment_bytes // 2)
        for at, header in iter_headers(data):
            # The position may be within a batch, whose base offset is that of the last forwarded one.
            if header.base_offset >= position and must_forward(header, self.forwarding.first_epoch, aborted):
                if batches and size + header.size > limit:
                    break
                batches.append(forwarded_copy(data[at : at + header.size], header, self._producer_id))
                size += header.size
            next_offset = header.next_offset
        else:
            if not data:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read at offset {position}")
        return _Chunk(batches, max(next_offset, position))

    def _delete_forwarded(self) -> None:
        """Delete the forwarded records, if the partition has retired.

        In a partition that has not, the log start offset would overtake consumers that have read everything, and those
        with auto.offset.reset=none would fail. There, only retention deletes records.
        """
        log = self._log
        if self.forwarding.is_retired and self.position > log.log_start_offset:
            log.delete_records(min(self.position, self._partition.high_watermark))
            self._partition.notify_all()

    @property
    def _stored_position(self) -> int:
        """The position in the last progress batch of the log; -1 if there is none."""
        stored = self._log.producers.first_of_last_batch(self._producer_id)
        return -1 if stored is None else position_of(*stored)

    def _store_progress(self) -> None:
        """Append the position to the log if it is new, so that the next leader begins there.

        The producer state of the target partition alone is not enough, see forwarded_batches.py.
        """
        loop, partition = self._environment.loop, self._partition
        if not self._has_progress or loop.time() < self._next_progress_s or partition.is_closing or not self.is_active:
            return
        self._next_progress_s = loop.time() + PROGRESS_INTERVAL_S
        now_ms = self._environment.clock.now_ms()
        batch = progress_batch(self.position, self._producer_id, now_ms)
        partition.append_batches([(batch, parse_header(batch), None)], now_ms)
        self._has_progress = False

    def _watch_commit(self) -> None:
        """Wake the forwarder when everything that is in the log now is committed."""
        end = self._log.log_end_offset
        if end > self._partition.high_watermark and end > self._watched:
            self._watched = end
            self._partition.on_committed(end, lambda _: self.wake())
