"""Delivers the delayed records of one partition while this broker leads it.

One task replays the log, and appends the records that are due. It works in slices of at most a few milliseconds, so
that a million records that are due at once do not delay other requests. An appended batch itself names the stored
records that it delivers: there is no second write that a crash could separate from the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.queues.delay.delay_batches import (
    NO_EFFECTS,
    Effects,
    build_delivery,
    build_move,
)
from kbroker.queues.delay.delay_state import DelayState
from kbroker.queues.delay.log_replay import replay_slice
from kbroker.queues.delay.pending_records import Pending
from kbroker.queues.delay.snapshot_file import SnapshotFile
from kbroker.queues.delay.stored_batches import StoredBatches
from kbroker.queues.wakeup import Wakeup
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.retention import count_expired_segments
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader, parse_header

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.queues.delay.delay_metrics import DelayMetrics
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment

event_log = EventLogger("kbroker.delay")

# Records that are delivered in one iteration of the event loop.
DELIVERY_SLICE = 100
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
        self._stored = StoredBatches(environment, partition.log)
        self._task: Task[None] | None = None
        self._wakeup = Wakeup(environment.loop)
        self._is_stopped = False
        # The wall-clock time of the next step, -1 while a step runs.
        self._wake_ms = -1
        # Retention is about to delete below this offset, so pending records there are moved. -1: nothing to move.
        self._move_below = -1
        # The log end offset after the last moved records, perhaps of the former leader. Until they are committed, their
        # old segments are kept: the next leader may not have the new copies.
        self._moved_end = partition.log.log_end_offset
        self._log_start = partition.log.log_start_offset
        self._snapshot = SnapshotFile(environment, partition.log)

    def start(self) -> None:
        self._task = self._environment.loop.create_task(self._run())

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

    def on_appended(self, header: BatchHeader, base_offset: int, added: list[Pending]) -> None:
        """Called after a producer's batch was appended; `added`: its delayed records."""
        if not self.is_loaded or self.state.next_offset != base_offset:
            self.wake()
            return
        appended = header._replace(base_offset=base_offset, leader_epoch=self._leader_epoch)
        self.state.replay(appended, Effects(added, []) if added else NO_EFFECTS)
        if added and min(added)[0] < self._wake_ms:
            self.wake()

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
        if self.state.next_offset < self._log.log_end_offset:
            await replay_slice(self._environment, self._log, self.state, self._log.log_end_offset)
            return 0
        if not self.is_loaded:
            self.is_loaded = True
            # DeleteRecords may have deleted the first records of a batch that was replayed as a whole.
            self.state.drop_below(self._log.log_start_offset)
        if self._log.log_start_offset > self._log_start:
            self._log_start = self._log.log_start_offset
            self.state.drop_below(self._log_start)
        if self._move_below >= 0 and await self._move_slice():
            return 0
        await self._snapshot.write_if_worthwhile(self.state, SNAPSHOT_INTERVAL_MS)
        now_ms = self._environment.clock.now_ms()
        due = self.state.pending.due(now_ms, DELIVERY_SLICE)
        if due:
            await self._deliver(due)
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
        header = parse_header(batch)
        if self.state.next_offset == header.base_offset:
            base = header.base_offset
            added = [(due, base + at) for at, (due, _) in enumerate(removed)] if is_move else []
            self.state.replay(header, Effects(added, removed))

    async def _deliver(self, due: list[Pending]) -> None:
        records = await self._stored.read(due)
        # The wall clock may have been set back meanwhile, and a record may have been cancelled.
        now_ms = self._environment.clock.now_ms()
        if self.state.pending.due(now_ms, len(records)) != due[: len(records)]:
            return
        is_log_append_time = self._log.config.message_timestamp_type == "LogAppendTime"
        batch = build_delivery(records, now_ms, log_append_time=is_log_append_time)
        self.append(batch, due[: len(records)])
        self.metrics.delivered([now_ms - due_ms for due_ms, _ in due[: len(records)]])

    async def _move_slice(self) -> bool:
        """Move pending records out of segments that are about to be deleted. Returns False if none are left."""
        entries = self.state.pending.below(self._move_below, DELIVERY_SLICE)
        if not entries:
            self._move_below = -1
            return False
        records = await self._stored.read(entries)
        moved = entries[: len(records)]
        if self.state.pending.below(self._move_below, len(moved)) == moved:
            self.append(build_move(records, self._environment.clock.now_ms()), moved, is_move=True)
            self._moved_end = self._log.log_end_offset
            self.metrics.moved_records += len(moved)
        return True

    def retention_limit(self, now_ms: int) -> int:
        """Return the offset up to which retention may delete segments now.

        Pending records in expired segments are moved first; a call after the move is committed returns a higher offset.
        """
        log, high_watermark = self._log, self._partition.high_watermark
        if not self.is_loaded or not self.is_leading or high_watermark < self._moved_end:
            return log.log_start_offset
        expired = count_expired_segments(
            log.segments, log.config, now_ms, log.log_start_offset, log.log_end_offset, high_watermark
        )
        if not expired:
            return high_watermark
        boundary = log.segments[expired].base_offset if expired < len(log.segments) else log.log_end_offset
        lowest = self.state.lowest_offset()
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
