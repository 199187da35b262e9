"""The high watermark of a partition on this broker, and what waits for it."""

from collections import deque
from collections.abc import Callable

from kbroker.common import TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.replica.fetch.fetch_session import FetchPartition
from kbroker.replica.partition_state import PartitionState
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import bytes_between
from kbroker.storage.producers.transactions import NO_UNSTABLE_OFFSET
from protocol.errors import ErrorCode

# Called when the records are committed (or synced), or with the error that prevents it.
OnCommitted = Callable[[ErrorCode], None]

# Those of a partition that was not fetched yet. Nothing is added.
_NO_FETCHERS: dict[FetchPartition, None] = {}


def waits_for_flush(config: TopicConfig) -> bool:
    """Return whether batches are acknowledged after they are synced. Kafka does that with flush.messages=1."""
    return config.flush_before_ack or config.flush_messages == 1


class PartitionHighWatermark:
    """`fetchers`: entries of consumers' fetch sessions to notify of the next change.

    `replica_fetchers`: those of the followers' sessions, which are notified of every append. `flush_before_ack`: see
    `waits_for_flush`. `is_closing`: the leader refuses records, see queues/closing/closing_partitions.py.
    """

    __slots__ = (
        "_closing_listeners", "_uncommitted_bytes", "_waiting", "_waiting_for_sync", "fetchers",
        "flush_before_ack", "is_closed", "is_closing", "is_flushing", "is_leader", "log", "mono_ms",
        "replica_fetchers", "state", "tp",
    )  # fmt: skip

    def __init__(self, log: Log, state: PartitionState, mono_ms: Callable[[], int], is_leader: bool) -> None:
        self.tp: TopicPartition = log.tp
        self.log = log
        self.state = state
        self.is_leader = is_leader
        # Whether the partition was removed from this broker.
        self.is_closed = False
        self.is_flushing = self.is_closing = False
        # Called when the partition is no longer closing, or this broker no longer leads it. A dict keeps the order.
        self._closing_listeners: dict[Callable[[], None], None] | None = None
        self.flush_before_ack = waits_for_flush(log.config)
        self.fetchers = _NO_FETCHERS
        self.replica_fetchers = _NO_FETCHERS
        self.mono_ms = mono_ms
        # Bytes appended since the high watermark last advanced. Fetches can read them when it advances next.
        self._uncommitted_bytes = 0
        # (offset, callback), ordered by offset. None while none has waited: an empty deque takes 760 bytes.
        self._waiting: deque[tuple[int, OnCommitted]] | None = None
        self._waiting_for_sync: deque[tuple[int, OnCommitted]] | None = None
        log.update_high_watermark(state.high_watermark)

    @property
    def topic_id(self) -> bytes:
        return self.log.topic_id

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """min(first offset of an open transaction, high watermark).

        If the first records of the transaction were deleted, it is the log start offset.
        """
        unstable, high_watermark = self.log.producers.transactions.first_unstable_offset, self.state.high_watermark
        if unstable >= high_watermark:
            return high_watermark
        return min(max(unstable, self.log.log_start_offset), high_watermark)

    # The high watermark.

    @property
    def is_catching_up(self) -> bool:
        """Whether a new leader's high watermark is still below what the former leader may have committed (KIP-207)."""
        return self.state.high_watermark < self.state.epoch_start_offset

    def advance_high_watermark(self) -> None:
        """Commit the records that all in-sync replicas have, and complete the requests that wait for them.

        With flush.before.ack only synced records count as present on this replica. Also completes the requests that
        wait for a sync alone.
        """
        if self._waiting_for_sync:
            self._complete_synced()
        if self.is_leader:
            self._advance_to(self.log.recovery_point if self.flush_before_ack else self.log.log_end_offset)

    def _advance_to(self, position: int) -> None:
        """Advance the high watermark to `position`, or as far as the followers allow."""
        state, log = self.state, self.log
        before = state.high_watermark
        if not state.advance_high_watermark(position):
            return
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        stable_size = None
        if log.producers.transactions.first_unstable_offset != NO_UNSTABLE_OFFSET:
            stable_size = self._advance_last_stable_offset(before)
        waiting = self._waiting
        while waiting and waiting[0][0] <= state.high_watermark:
            waiting.popleft()[1](ErrorCode.NONE)
        if self.fetchers:
            self.notify_fetchers(size, stable_size)
        # The followers learn the high watermark with their next response. No response is sent for it alone.
        if self.replica_fetchers:
            for fetched in self.replica_fetchers:
                fetched.session.ready[fetched] = None

    def _advance_last_stable_offset(self, high_watermark_before: int) -> int:
        """Advance the last stable offset with the high watermark.

        Returns how many bytes have become stable: 0 if the number is unknown, -1 if none have.
        """
        transactions, log = self.log.producers.transactions, self.log
        before = max(min(transactions.first_unstable_offset, high_watermark_before), log.log_start_offset)
        log.update_high_watermark(self.state.high_watermark)
        after = self.last_stable_offset
        return bytes_between(log, before, after) if after > before else -1

    def set_min_insync_replicas(self, min_insync_replicas: int) -> None:
        """Apply a changed min.insync.replicas, before the other configs."""
        self.state.set_min_insync_replicas(min_insync_replicas)
        self.advance_high_watermark()

    def stop_waiting_for(self, replica_id: int) -> None:
        """Let the high watermark advance without a follower that is joining the ISR, which now gets no records."""
        follower = self.state.followers.get(replica_id)
        if follower is not None and follower.is_joining:
            follower.is_joining = False
            self.state.update_counted()
            self.advance_high_watermark()

    def on_committed(self, offset: int, callback: OnCommitted) -> None:
        """Call back when everything below `offset` is committed, or with the error that prevents it."""
        if self.is_closed:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.state.high_watermark >= offset:
            callback(ErrorCode.NONE)
        elif self.log.health.offline is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._waiting = _insert(self._waiting, offset, callback)

    def on_synced(self, offset: int, callback: OnCommitted) -> None:
        """Call back when everything below `offset` is synced on this replica, or with the error that prevents it.

        Only with `flush_before_ack`, where each append requests a sync.
        """
        if self.is_closed:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.recovery_point >= offset:
            callback(ErrorCode.NONE)
        elif self.log.health.offline is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._waiting_for_sync = _insert(self._waiting_for_sync, offset, callback)

    def _complete_synced(self) -> None:
        waiting = self._waiting_for_sync
        while waiting and (waiting[0][0] <= self.log.recovery_point or not self.flush_before_ack):
            waiting.popleft()[1](ErrorCode.NONE)

    def begin_fetches(self) -> None:
        """Called before a fetch session is notified for the first time."""
        if self.fetchers is _NO_FETCHERS:
            self.fetchers, self.replica_fetchers = {}, {}

    def notify_fetchers(self, size: int, stable_size: int | None = None) -> None:
        """Notify the fetch sessions of a change, and waiting fetches of more bytes to read.

        `size`: bytes committed, 0 for another change that must be sent. `stable_size`: bytes that have become stable,
        for fetches of committed records, or -1; None for the same as `size`. A session without a waiting fetch is
        notified once, and again after its next response: idle sessions cost appends nothing.
        """
        if not self.fetchers:
            return
        fetchers, self.fetchers = self.fetchers, {}
        for fetched in fetchers:
            session = fetched.session
            session.ready[fetched] = None
            if session.waiter is not None:
                self.fetchers[fetched] = None
                if stable_size is None or not session.waiter.read_committed:
                    session.waiter.gained(size)
                elif stable_size >= 0:
                    session.waiter.gained(stable_size)

    def _notify_replicas(self, size: int) -> None:
        """Notify the followers of `size` more bytes to fetch, or 0 for another change that must be sent."""
        if size:
            self.state.mark_caught_up(self.log.log_end_offset, self.mono_ms())
        for fetched in self.replica_fetchers:
            session = fetched.session
            session.ready[fetched] = None
            if session.waiter is not None:
                session.waiter.gained(size)

    def notify_all(self) -> None:
        """Notify consumers and followers of a change that must be sent, such as a new log start offset."""
        self.notify_fetchers(0)
        self._notify_replicas(0)

    # Closing partitions.

    def add_closing_listener(self, callback: Callable[[], None]) -> None:
        """Call the listener once, when this closing partition is open again, is removed, or has another leader."""
        if self._closing_listeners is None:
            self._closing_listeners = {}
        self._closing_listeners[callback] = None

    def remove_closing_listener(self, callback: Callable[[], None]) -> None:
        """Undo `add_closing_listener`."""
        if self._closing_listeners is not None:
            self._closing_listeners.pop(callback, None)

    def _call_closing_listeners(self) -> None:
        waiting, self._closing_listeners = self._closing_listeners, None
        for callback in waiting or ():
            callback()

    # Failure and removal.

    def fail_waiting(self, code: ErrorCode) -> None:
        """Fail the waiting requests after a loss of leadership or of the disk: their batches may never be committed."""
        waiting = [*(self._waiting or ()), *(self._waiting_for_sync or ())]
        self._waiting = self._waiting_for_sync = None
        for _, callback in waiting:
            callback(code)
        self.notify_all()

    def close(self) -> None:
        """Called when the partition is removed from this broker."""
        self.is_closed = True
        self.is_leader = False
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetchers.clear()
        self.replica_fetchers.clear()


def _insert(
    waiting: deque[tuple[int, OnCommitted]] | None, offset: int, callback: OnCommitted
) -> deque[tuple[int, OnCommitted]]:
    """Insert in the order of offsets."""
    if waiting is None:
        return deque([(offset, callback)])
    position = len(waiting)
    # Offsets of appends only grow, but a duplicate waits for the offset of its original.
    while position and waiting[position - 1][0] > offset:
        position -= 1
    waiting.insert(position, (offset, callback))
    return waiting
