"""A share partition: the records of one partition that a share group has in flight, in one leader epoch (KIP-932).

All is decided here, without I/O. What changes the stored state is a `StateChange`: its ranges are pending from the
decision until it is persisted (`commit`), or not (`roll_back`), and meanwhile nobody can acquire, acknowledge or
release them.
Acquiring stores nothing: a new leader forgets all locks, and the deliveries since the last change of a record.

    AVAILABLE --acquire--> ACQUIRED --accept--> ACKNOWLEDGED
        ^                     |  |---reject, the last delivery---> ARCHIVING --dead letter--> ARCHIVED
        +-release, expired----+  +---gap, and the same without dead letters---------------------^

The window limits how far acquiring runs ahead of the first open record. Records that wait, for their time after a
failed delivery or for their dead letter, do not hold it; they have the same limit for themselves. Holes, in which
consumers see nothing, do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kbroker.common import KafkaError
from kbroker.coordinator.share.share_partition_state import (
    NOT_DELAYED,
    DeliveryState,
    PersistedState,
    StateBatch,
    StateWrite,
)
from kbroker.share.delivery import Acknowledgement, AcknowledgeType, Acquired, Acquisition, DeliveryPolicy, ScannedBatch
from kbroker.share.in_flight import FINISHED, InFlightRange, InFlightRanges, Span
from protocol.errors import ErrorCode

# A member is gone, or the coordinator of the state is not available: what to release is tried again after this time.
RELEASE_RETRY_MS = 1000


@dataclass(slots=True)
class _Update:
    range: InFlightRange
    state: DeliveryState
    due_ms: int


@dataclass(slots=True, eq=False)
class StateChange:
    """Changes of ranges that are pending until they are persisted. `is_retried`: nobody waits for the outcome, and
    what cannot be persisted is tried again."""

    is_retried: bool = False
    updates: list[_Update] = field(default_factory=list)

    def add(self, changed: InFlightRange, state: DeliveryState, due_ms: int = 0) -> None:
        changed.is_pending = True
        self.updates.append(_Update(changed, state, due_ms))

    def record_counts(self) -> Counter[DeliveryState]:
        """Return how many records get each state."""
        counts: Counter[DeliveryState] = Counter()
        for update in self.updates:
            counts[update.state] += update.range.size
        return counts


class SharePartition:
    """`start`: the first offset that is not finished. `end`: the last one in flight, `start` - 1 if there are none.

    `leader_epoch`: the one in which the state was read. `wall_ms_ahead`: how far the wall clock is ahead of the
    monotonic one; times are stored as those of the former.
    """

    __slots__ = ("_ranges", "_state_epoch", "_unstored", "_wall_ms_ahead", "end", "leader_epoch", "start")

    def __init__(self, stored: PersistedState, leader_epoch: int, wall_ms_ahead: int = 0) -> None:
        """What is missing between the stored ranges was acquired and never changed, so it is available."""
        self.start = stored.start_offset
        self.end = self.start - 1
        self.leader_epoch = leader_epoch
        self._state_epoch = stored.state_epoch
        self._wall_ms_ahead = wall_ms_ahead
        self._ranges = InFlightRanges()
        # Holes that were archived, and are stored together with the next change.
        self._unstored: list[StateBatch] = []
        for batch in stored.batches:
            first = max(batch.first, self.start)
            if batch.last < first:
                continue
            if self.end + 1 < first:
                self._append(InFlightRange(self.end + 1, first - 1, DeliveryState.AVAILABLE))
            state = DeliveryState(batch.state)
            if state is DeliveryState.ACQUIRED:
                state = DeliveryState.AVAILABLE
            due_ms = 0 if batch.due_ms == NOT_DELAYED else batch.due_ms - wall_ms_ahead
            self._append(InFlightRange(first, batch.last, state, batch.delivery_count, due_ms=due_ms))
        self._settle()

    @property
    def ranges(self) -> Sequence[InFlightRange]:
        return list(self._ranges)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost with this object: no locks, and no dead letters to write."""
        return all(each.state in (DeliveryState.AVAILABLE, *FINISHED) and not each.is_pending for each in self._ranges)

    def _append(self, added: InFlightRange) -> None:
        self._ranges.append(added)
        self.end = added.last

    # Acquiring.

    def next_fetch_offset(self, policy: DeliveryPolicy, now_ms: int) -> int | None:
        """Return the offset from which on there may be records to acquire; None if nothing can be acquired now."""
        for each in self._ranges:
            if each.is_acquirable(now_ms):
                return each.first
        return self.end + 1 if self._free_window(policy, now_ms) > 0 else None

    def _free_window(self, policy: DeliveryPolicy, now_ms: int) -> int:
        """Return how many records behind the end may be acquired."""
        limit, used, parked, is_open = policy.max_record_locks, 0, 0, False
        for each in self._ranges:
            if each.is_parked(now_ms):
                parked += each.size
            is_open = is_open or not (each.is_parked(now_ms) or each.state in FINISHED) or each.is_pending
            if is_open and not each.is_hole:
                used += each.size
        # The number of ranges is that of the coordinator's state, too.
        if parked >= limit or len(self._ranges) > 2 * limit:
            return 0
        return limit - used

    def acquire(
        self,
        member_id: str,
        batches: Sequence[ScannedBatch],
        scanned: Span,
        policy: DeliveryPolicy,
        now_ms: int,
        max_records: int,
        batch_size: int,
        is_strict: bool,
    ) -> list[Acquired]:
        """Acquire what is available in the scanned offsets, in order. Other offsets there are holes, and archived.

        With `is_strict` (record_limit, KIP-1206) at most `max_records`; otherwise whole batches of the log, until that
        many are acquired, in results of at most `batch_size` records, unless a batch has more.
        """
        work = Acquisition(member_id, policy, now_ms, max_records if is_strict else batch_size)
        position = scanned.first
        window = self._free_window(policy, now_ms)
        for batch in batches:
            for span in batch.spans:
                self._archive_hole(Span(position, span.first - 1))
                allowed = max_records - work.count if is_strict else span.last - span.first + 1
                for each in self._ranges.overlapping(span):
                    if allowed > 0 and each.is_acquirable(now_ms) and not work.is_full:
                        wanted = Span(max(each.first, span.first), min(each.last, span.last))
                        allowed -= self._take(work, wanted, allowed)
                first = max(span.first, self.end + 1)
                new = min(span.last - first + 1, allowed, window)
                if new > 0 and not work.is_full:
                    self._append(InFlightRange(first, first + new - 1, DeliveryState.AVAILABLE))
                    window -= new
                    self._take(work, Span(first, first + new - 1), new)
                position = span.last + 1
                if self.end < span.last:
                    # What follows is not in flight yet: nothing may be missing between.
                    self._settle()
                    return work.acquired
            if work.count >= max_records or work.is_full:
                self._settle()
                return work.acquired
        self._archive_hole(Span(position, scanned.last))
        self._settle()
        return work.acquired

    def _take(self, work: Acquisition, wanted: Span, allowed: int) -> int:
        """Acquire available records, at most `allowed`. Returns how many."""
        (each, *_) = self._ranges.overlapping(wanted)
        size = min(wanted.last - wanted.first + 1, allowed)
        if work.count and work.policy.is_last_delivery(each.delivery_count):
            work.is_full = True
            return 0
        together = work.policy.deliverable_records(each.delivery_count, size)
        if together < size or work.policy.is_last_delivery(each.delivery_count):
            size, work.is_full = together, True
        (taken,) = self._ranges.cut(Span(wanted.first, wanted.first + size - 1))
        taken.state = DeliveryState.ACQUIRED
        taken.delivery_count += 1
        taken.member_id = work.member_id
        taken.lock_until_ms = work.now_ms + work.policy.lock_duration_ms
        taken.due_ms = 0
        work.add(Acquired(taken.first, taken.last, taken.delivery_count))
        return size

    def _archive_hole(self, span: Span) -> None:
        """Archive available offsets without records, in flight or right behind the end."""
        for each in self._ranges.overlapping(span):
            if each.state is DeliveryState.AVAILABLE and not each.is_pending:
                for part in self._ranges.cut(Span(max(each.first, span.first), min(each.last, span.last))):
                    self._archive(part)
        first = max(span.first, self.end + 1)
        if first <= span.last:
            added = InFlightRange(first, span.last, DeliveryState.ARCHIVED)
            self._append(added)
            self._archive(added)

    def _archive(self, hole: InFlightRange) -> None:
        hole.state, hole.due_ms, hole.is_hole = DeliveryState.ARCHIVED, 0, True
        # Of two states of an offset the one with the higher count applies, and the record may have been delivered.
        self._unstored.append(StateBatch(hole.first, hole.last, hole.state, hole.delivery_count))

    def archive_before(self, log_start: int) -> None:
        """Archive what was deleted from the log, except what a member has or what still needs its dead letter."""
        if self.start < log_start:
            self._archive_hole(Span(self.start, log_start - 1))
            self._settle()

    # Changes.

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], policy: DeliveryPolicy, now_ms: int
    ) -> StateChange:
        """Return the change, all or nothing. Raises KafkaError: INVALID_RECORD_STATE, INVALID_REQUEST.

        What is below the start is ignored, since it is finished.
        """
        spans = [
            (Span(max(each.first, self.start), each.last), each.type)
            for each in acknowledgements
            if each.last >= self.start
        ]
        for span, _ in spans:
            self._check_acquired(span, member_id)
        change = StateChange()
        for span, kind in spans:
            for each in self._ranges.cut(span):
                if each.is_hole:
                    continue
                if kind == AcknowledgeType.RENEW:
                    each.lock_until_ms = now_ms + policy.lock_duration_ms
                else:
                    self._acknowledge(change, each, kind, policy, now_ms)
        return change

    def _check_acquired(self, span: Span, member_id: str) -> None:
        found = self._ranges.overlapping(span)
        if self.end < self.start:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        if span.last > self.end:
            which = "first" if span.first > self.end else "last"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Batch record not found. The {which} offset in request is past acquired records.",
            )
        for each in found:
            if each.is_hole:
                continue
            if each.state is not DeliveryState.ACQUIRED or each.is_pending:
                raise not_acquired()
            if each.member_id != member_id:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of batch record")

    def _acknowledge(
        self, change: StateChange, each: InFlightRange, kind: int, policy: DeliveryPolicy, now_ms: int
    ) -> None:
        if kind == AcknowledgeType.ACCEPT:
            change.add(each, DeliveryState.ACKNOWLEDGED)
        elif kind == AcknowledgeType.GAP:
            change.add(each, DeliveryState.ARCHIVED)
        elif kind == AcknowledgeType.REJECT:
            change.add(each, policy.final_state)
        elif kind == AcknowledgeType.RELEASE:
            self._release(change, each, policy, policy.due_ms(each.delivery_count, now_ms))

    def _release(self, change: StateChange, each: InFlightRange, policy: DeliveryPolicy, due_ms: int) -> None:
        state = policy.state_after_failure(each.delivery_count)
        change.add(each, state, due_ms if state is DeliveryState.AVAILABLE else 0)

    def release_member(self, member_id: str, policy: DeliveryPolicy) -> StateChange:
        """Release what a member has, because its session has ended. It is available at once."""
        change = StateChange(is_retried=True)
        for each in self._ranges:
            if each.state is DeliveryState.ACQUIRED and each.member_id == member_id and not each.is_pending:
                self._release(change, each, policy, 0)
        return change

    def expire_locks(self, policy: DeliveryPolicy, now_ms: int) -> StateChange:
        """Release the records whose lock has expired."""
        change = StateChange(is_retried=True)
        for each in self._ranges:
            if each.state is DeliveryState.ACQUIRED and each.lock_until_ms <= now_ms and not each.is_pending:
                self._release(change, each, policy, policy.due_ms(each.delivery_count, now_ms))
        return change

    def dead_letters(self) -> list[InFlightRange]:
        """Return the ranges that need a dead letter."""
        return [each for each in self._ranges if each.state is DeliveryState.ARCHIVING and not each.is_pending]

    def archive_dead_letters(self, span: Span) -> StateChange:
        """Return the change after the dead letters of a span were written."""
        change = StateChange(is_retried=True)
        for each in self._ranges.cut(span):
            if each.state is DeliveryState.ARCHIVING and not each.is_pending:
                change.add(each, DeliveryState.ARCHIVED)
        return change

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return when the first lock expires, or the first delayed record becomes due; None without such records."""
        times = [
            each.lock_until_ms if each.state is DeliveryState.ACQUIRED else each.due_ms
            for each in self._ranges
            if not each.is_pending and (each.state is DeliveryState.ACQUIRED or each.due_ms > now_ms)
        ]
        return min(times, default=None)

    # Persistence.

    def begin_write(self, changes: Sequence[StateChange]) -> tuple[StateWrite, Callable[[], None]]:
        """Return what to store for changes and for holes, and what to call if it was not stored."""
        target = {update.range: update for change in changes for update in change.updates}
        holes, self._unstored = self._unstored, []
        start, finished, is_first = self.start, 0, True
        for each in self._ranges:
            state = target[each].state if each in target else each.state
            is_finished = state in FINISHED and (each in target or not each.is_pending)
            is_first = is_first and is_finished
            if is_first:
                start = each.last + 1
            elif is_finished:
                finished += each.size
        batches = [self._stored(each, update, start) for each, update in target.items() if each.last >= start]
        batches += [hole._replace(first=max(hole.first, start)) for hole in holes if hole.last >= start]
        write = StateWrite(self._state_epoch, self.leader_epoch, start, finished, tuple(sorted(batches)))
        return write, lambda: self._unstored.extend(holes)

    def _stored(self, each: InFlightRange, update: _Update, start: int) -> StateBatch:
        due_ms = update.due_ms + self._wall_ms_ahead if update.due_ms else NOT_DELAYED
        return StateBatch(max(each.first, start), each.last, update.state, each.delivery_count, due_ms)

    def commit(self, change: StateChange) -> None:
        """Apply a change that was persisted."""
        for update in change.updates:
            each = update.range
            each.state, each.due_ms, each.is_pending = update.state, update.due_ms, False
            each.member_id, each.lock_until_ms = "", 0
        self._settle()

    def roll_back(self, change: StateChange, now_ms: int) -> None:
        """End a change that was not persisted. Its records have their former state; their locks may have expired."""
        for update in change.updates:
            update.range.is_pending = False
            if change.is_retried and update.range.state is DeliveryState.ACQUIRED:
                update.range.lock_until_ms = now_ms + RELEASE_RETRY_MS
        self._settle()

    def _settle(self) -> None:
        """Move the start over finished records, and join ranges."""
        self.start += self._ranges.drop_finished()
        self._ranges.merge()


def not_acquired() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, "The offset cannot be acknowledged. The offset is not acquired.")
