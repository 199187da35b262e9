"""Delivers the delayed records of one partition while this broker leads it.

One task replays the log, reads the records that are due next, and appends those that are due. It works in slices of
about a millisecond, so that a million records that are due at once do not delay other requests. An appended batch
itself names the stored records that it delivers: there is no second write that a crash could separate from the first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.queue_configs import levels_ms
from kbroker.queues.delay.delay_batches import (
    NO_EFFECTS,
    Effects,
    StoredRecord,
    build_delivery,
    build_move,
    effects_of,
    has_effects,
    is_transactional,
    pick_records,
    stored_record,
)
from kbroker.queues.delay.delay_state import DelayState
from kbroker.queues.delay.pending_records import Pending
from kbroker.queues.delay.snapshots import SnapshotFile, replay_batches
from kbroker.queues.delay.stored_records import READ_BYTES, StoredRecords, first_batch, read_batches, read_body
from kbroker.queues.waits import Wakeup
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import yield_if_due
from kbroker.storage.log.segment_lifetime import count_expired_segments
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader, iter_headers, parse_header

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment


class DelayMetrics:
    """Counters of records since the start.

    `delivered_records` were due; `lateness_ms` is the sum of their delays after the due time, `max_lateness_ms` the
    longest. `delivered_early` were delivered on request. `moved_records` were moved out of segments that retention
    deletes.
    """

    __slots__ = (
        "cancelled", "delivered_early", "delivered_records", "lateness_ms", "max_lateness_ms", "moved_records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delivered_records = self.delivered_early = self.cancelled = self.moved_records = 0
        self.lateness_ms = self.max_lateness_ms = 0

    def delivered(self, lateness_ms: list[int]) -> None:
        """Count delivered records. `lateness_ms`: for each, the ms since it was due."""
        self.delivered_records += len(lateness_ms)
        self.lateness_ms += sum(lateness_ms)
        self.max_lateness_ms = max([self.max_lateness_ms, *lateness_ms])


event_log = EventLogger("kbroker.delay")

# Records that are delivered or moved in one iteration of the event loop, which takes less than half a millisecond.
DELIVERY_SLICE, MOVE_SLICE = 50, 50
# Records are read this long before they are due, and others with them that are due later.
PREPARE_MS, READ_AHEAD_MS = 1_000, 60_000
# An append applies at most this many delayed records itself; the task applies others in steps. At most MAX_UNAPPLIED
# batches wait for it, and the task reads what follows them from the log.
APPLIED_AT_ONCE, MAX_UNAPPLIED = 100, 32
MAX_MOVED = 10_000
RETRY_MS = 100
# While records are pending, the wall clock is read at least this often, since it may be set.
MAX_WAIT_MS = 1_000
SNAPSHOT_INTERVAL_MS = 60_000
# How long a request waits until the pending records are loaded, and how often it checks.
MAX_LOAD_S, LOAD_POLL_S = 30.0, 0.001


class DelayedDelivery:
    """Delivers in one leader epoch. `state`: the pending records. `is_loaded`: `state` has replayed the whole log."""

    def __init__(self, environment: Environment, partition: Partition, metrics: DelayMetrics) -> None:
        self.state = DelayState(partition.log.log_start_offset)
        self.is_loaded = False
        self._environment = environment
        self._partition = partition
        self.metrics = metrics
        self._log = partition.log
        self._leader_epoch = partition.state.leader_epoch
        self._stored = StoredRecords(environment, partition.log)
        self._task: Task[None] | None = None
        # Large batches that this broker has appended, from `state.next_offset` on, and those after them.
        self._appended: deque[tuple[BatchHeader, list[Pending]]] = deque()
        self._wakeup = Wakeup(environment.loop)
        self._is_stopped = False
        # The wall-clock time of the next step, -1 while a step runs.
        self._wake_ms = -1
        # Retention is about to delete below this offset, so pending records there are moved. -1: nothing to move.
        self._move_below = -1
        # The next offset to look at; -1: the lowest of all pending records.
        self._move_at = -1
        # The log end offset after the last moved records, perhaps of the former leader. Until they are committed, their
        # old segments are kept: the next leader may not have the new copies.
        self._moved_end = partition.log.log_end_offset
        # The new offsets of the last moved records, by their old ones, which clients may know from a list; the reverse.
        self._moved: dict[int, int] = {}
        self._former: dict[int, int] = {}
        self._log_start = partition.log.log_start_offset
        self._snapshot = SnapshotFile(environment, partition.log)

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._environment.turns.run(self._run()))

    def stop(self) -> None:
        """Stop delivering: the leadership or the process ends. Nothing is appended any more."""
        self._is_stopped = True
        self.wake()

    async def stop_and_wait(self) -> None:
        """Stop, and wait until a snapshot is written, which makes the next start faster."""
        self.stop()
        if self._task is not None:
            await self._task

    def wake(self) -> None:
        """Called after an append."""
        self._wakeup.wake()

    @property
    def is_leading(self) -> bool:
        partition = self._partition
        return (
            not self._is_stopped
            and partition.is_leader
            and not partition.is_closed
            and partition.state.leader_epoch == self._leader_epoch
        )

    def on_appended(self, header: BatchHeader, base_offset: int, dues: list[Pending]) -> None:
        """Called after a producer's batch was appended; `dues`: (due time, index) of its delayed records."""
        if not self.is_loaded or self._appended_end() != base_offset:
            self.wake()
            return
        appended = header._replace(base_offset=base_offset, leader_epoch=self._leader_epoch)
        if len(dues) > APPLIED_AT_ONCE and is_transactional(header):
            self.wake()
            return
        if self._appended or len(dues) > APPLIED_AT_ONCE:
            if len(self._appended) < MAX_UNAPPLIED:
                self._appended.append((appended, dues))
            self.wake()
            return
        added = [(due, base_offset + index) for due, index in dues]
        self.state.replay(appended, Effects(added, []) if added else NO_EFFECTS)
        if added and min(added)[0] < self._wake_ms:
            self.wake()

    def _appended_end(self) -> int:
        """Return the end of the appended batches that need not be read again."""
        return self._appended[-1][0].next_offset if self._appended else self.state.next_offset

    async def _apply_appended(self) -> None:
        """Apply the first of the appended batches, unless it was replayed from the log."""
        header, dues = self._appended[0]
        if header.base_offset == self.state.next_offset:
            if is_transactional(header):
                self.state.replay(header, Effects([(due, header.base_offset + index) for due, index in dues], []))
            else:
                self.state.add_some(dues, header.base_offset)
                self.state.replay(header, NO_EFFECTS)
        del self._appended[0]

    # The task.

    async def _run(self) -> None:
        try:
            await self._load()
        except Exception as error:
            event_log.failure("loading delayed records failed", error, partition=self._partition.tp)
        while self.is_leading:
            wait_ms: int | None = 0
            try:
                wait_ms = await self._step()
            except KafkaError as error:
                # Too few replicas are in sync, or the disk is full: the records stay pending.
                wait_ms = RETRY_MS
                if error.code not in (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                    event_log.warning("delayed delivery must wait", partition=self._partition.tp, reason=error)
            except Exception as error:
                if not self.is_leading:
                    # The log was closed or truncated meanwhile.
                    break
                wait_ms = MAX_WAIT_MS
                event_log.failure("delayed delivery failed", error, partition=self._partition.tp)
            if wait_ms == 0:
                await self._environment.yield_to_loop()
            elif not self._is_stopped:
                await self._wakeup.wait(None if wait_ms is None else wait_ms / 1000)
            self._wake_ms = -1
        self._stored.clear()
        if self.is_loaded and not self._partition.is_closed:
            # This broker may lead the partition again.
            await self._snapshot.write_if_worthwhile(self.state)

    async def _step(self) -> int | None:
        """Do one slice of work. Returns the ms until the next one, 0 for at once, None to wait for an append."""
        if self._appended:
            await self._apply_appended()
            return 0
        if self.state.next_offset < self._log.log_end_offset:
            await replay_batches(self._environment, self._log, self.state, self._log.log_end_offset)
            return 0
        if not self.is_loaded:
            self.is_loaded = True
            # DeleteRecords may have deleted the first records of a batch that was replayed as a whole.
            self._log_start = -1
        await self._snapshot.write_if_worthwhile(self.state, SNAPSHOT_INTERVAL_MS)
        if self._log.log_start_offset > self._log_start:
            self._log_start = self._log.log_start_offset
            self._stored.clear()
            self.state.drop_below(self._log_start)
            return 0
        # Retention may have a million records to move, while others are due.
        is_moving = self._move_below >= 0 and await self._move_some()
        now_ms = self._environment.clock.now_ms()
        if self._deliver(now_ms) or await self._read_ahead(now_ms) or is_moving:
            return 0
        if self.state.next_offset < self._log.log_end_offset or self._move_below >= 0:
            # During an await, a batch was appended or a segment expired.
            return 0
        first_ms = self.state.pending.first_due_ms()
        if first_ms is None:
            self._wake_ms = 1 << 62
            return None
        self._wake_ms = min(first_ms, now_ms + MAX_WAIT_MS)
        return max(1, min(first_ms - now_ms, MAX_WAIT_MS))

    # Replay.

    async def _load(self) -> None:
        """Load the snapshot, if it belongs to this log. Without it the whole log is replayed."""
        state = await self._snapshot.load()
        if state is not None:
            self.state = state

    # Deliveries.

    def append(self, batch: bytearray, removed: list[Pending], is_move: bool = False) -> None:
        """Append a batch as the leader, and apply it. Raises KafkaError.

        `removed`: the records that it names. `is_move`: it stores them again.
        """
        if not self.is_leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # The added headers may make a record of the largest size exceed segment.bytes.
        self._partition.append_internal(batch, self._environment.clock.now_ms(), any_size=True)
        self._stored.forget(removed)
        header = parse_header(batch)
        added: list[Pending] = []
        if is_move:
            for offset, (due, old_offset) in enumerate(removed, header.base_offset):
                added.append((due, offset))
                self._moved[old_offset], self._former[offset] = offset, old_offset
                if len(self._moved) > MAX_MOVED:
                    del self._former[self._moved.pop(next(iter(self._moved)))]
        if self.state.next_offset == header.base_offset:
            self.state.replay(header, Effects(added, removed))

    def moved_to(self, offset: int) -> int:
        """Return the offset of a record that was at `offset`, if retention has moved it lately."""
        while offset in self._moved:
            offset = self._moved[offset]
        return offset

    def former_offset(self, offset: int) -> int:
        """Return the offset from which retention has lately moved the record that is at `offset` now, else -1."""
        return self._former.get(offset, -1)

    def _deliver(self, now_ms: int) -> bool:
        """Deliver the first records that are due and were read. Returns False if there are none. Raises KafkaError."""
        ready = self._stored.first_ready(self.state.pending.due(now_ms, DELIVERY_SLICE))
        if not ready:
            return False
        records = first_batch(ready, self._log.config.segment_bytes)
        is_log_append_time = self._log.config.message_timestamp_type == "LogAppendTime"
        batch = build_delivery(records, now_ms, log_append_time=is_log_append_time)
        self.append(batch, [record[:2] for record in records])
        self.metrics.delivered([now_ms - record.due_ms for record in records])
        return True

    async def _read_ahead(self, now_ms: int) -> bool:
        """Read the records that are due soon; if few are ready, also some that follow. Returns False if all are ready.

        Raises KafkaError, MalformedError.
        """
        pending, stored = self.state.pending, self._stored
        soon = pending.due(now_ms + PREPARE_MS, min(stored.window, DELIVERY_SLICE))
        if stored.has_all(soon):
            return False
        if stored.is_low:
            soon = pending.due(now_ms + READ_AHEAD_MS, stored.window)
        await stored.prepare(soon)
        return True

    async def _move_some(self) -> bool:
        """Move pending records out of segments that are about to be deleted. Returns False if none are left.

        Raises KafkaError, MalformedError.
        """
        pending = self.state.pending
        lowest: int | None = None
        if self._move_at < 0:
            lowest = pending.lowest_offset()
            if lowest is None or lowest >= self._move_below:
                self._move_below = -1
                return False
            self._move_at = lowest
        start, self._move_at = max(self._move_at, self._log.log_start_offset), -1
        # The records of several small batches are moved together.
        records: list[StoredRecord] = []
        found, next_offset = 0, start
        view = await read_batches(self._environment, self._log, start, READ_BYTES, self._move_below)
        try:
            for pos, header in iter_headers(view):
                if has_effects(header):
                    some = await self._pending_of(view[pos : pos + header.size], header)
                    found += len(some)
                    records += some
                    if len(records) >= MOVE_SLICE:
                        moving, records = records, []
                        await self._move(moving)
                next_offset = header.next_offset
                yield_if_due()
        finally:
            # Also if a later batch is damaged.
            await self._move(records)
        if not found and lowest is not None and pending.lowest_offset() == lowest:
            raise MalformedError(f"no batch has the pending record at offset {lowest}")
        if next_offset < self._move_below:
            self._move_at = next_offset
        return True

    async def _pending_of(self, batch: memoryview, header: BatchHeader) -> list[StoredRecord]:
        """Return the pending records of a batch. Raises KafkaError, MalformedError."""
        pending = self.state.pending
        levels = levels_ms(self._log.config.kbroker_delay_levels)
        body = await read_body(self._environment, batch, header)
        effects = effects_of(batch, body, header, levels)
        entries = [entry for entry in effects.added if entry in pending]
        picked = pick_records(body, header, [offset for _, offset in entries])
        records: list[StoredRecord] = []
        for entry, record in zip(entries, picked, strict=True):
            if record is not None:
                records.append(stored_record(entry, record, header))
                yield_if_due()
        return records

    async def _move(self, records: list[StoredRecord]) -> None:
        """Store pending records again. Raises KafkaError."""
        at = 0
        while at < len(records):
            await self._environment.yield_to_loop()
            some = first_batch(records[at : at + MOVE_SLICE], self._log.config.segment_bytes)
            at += len(some)
            # Meanwhile some may have been cancelled, delivered on request, or deleted.
            pending, start = self.state.pending, self._log.log_start_offset
            still = [each for each in some if each[:2] in pending and each.offset >= start]
            if still:
                now_ms = self._environment.clock.now_ms()
                self.append(build_move(still, now_ms), [each[:2] for each in still], is_move=True)
                self._moved_end = self._log.log_end_offset
                self.metrics.moved_records += len(still)

    def retention_limit(self, now_ms: int) -> int:
        """Return the offset up to which retention may delete segments now.

        Pending records in expired segments are moved first; a call after the move is committed returns a higher offset.
        """
        # In turns, so it is found before the checks: a record that is moved meanwhile has a higher offset.
        lowest = self.state.lowest_offset()
        log, high_watermark = self._log, self._partition.high_watermark
        if not self.is_loaded or not self.is_leading or high_watermark < self._moved_end:
            return log.log_start_offset
        expired = count_expired_segments(
            log.segments, log.config, now_ms, log.log_start_offset, log.log_end_offset, high_watermark
        )
        if not expired:
            return high_watermark
        boundary = log.segments[expired].base_offset if expired < len(log.segments) else log.log_end_offset
        if lowest is None or lowest >= boundary:
            return min(high_watermark, boundary)
        self._move_below = boundary
        self.wake()
        return min(high_watermark, lowest)

    # Requests.

    async def wait_until_loaded(self) -> None:
        """Wait until the pending records are loaded.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER if the leadership ends before, REQUEST_TIMED_OUT after MAX_LOAD_S.
        """
        deadline_s = self._environment.loop.time() + MAX_LOAD_S
        while self.is_leading and not (self.is_loaded and self.state.next_offset == self._log.log_end_offset):
            self.wake()
            if self._environment.loop.time() > deadline_s:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The pending records are still being loaded.")
            await self._environment.sleep(LOAD_POLL_S)
        if not self.is_leading:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
