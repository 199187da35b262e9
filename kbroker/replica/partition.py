"""A partition that this broker holds: its log, its leadership, and who waits for it."""

from collections import deque
from collections.abc import Callable

from kbroker.config.topic import TopicConfig
from kbroker.model import Buffer, KafkaError, TopicPartition
from kbroker.state.fetch_session import FetchPartition
from kbroker.state.partition import PartitionState
from kbroker.storage.log import Log
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader

Committed = Callable[[ErrorCode], None]


def acknowledged_by_sync(config: TopicConfig) -> bool:
    """Kafka syncs inside the append when flush.messages is 1: as good as flush.before.ack."""
    return config.flush_before_ack or config.flush_messages == 1


class Partition:
    """Appends and their consequences: the high watermark moves, waiting requests wake.

    Consumers see offsets below `state.high_watermark`; `fetchers` are the fetch sessions to tell when it moves.
    """

    __slots__ = (
        "closed",
        "fetchers",
        "flush_before_ack",
        "flushing",
        "is_leader",
        "log",
        "request_flush",
        "state",
        "tp",
        "waiting",
    )

    def __init__(
        self,
        log: Log,
        state: PartitionState,
        request_flush: Callable[["Partition"], None],
        *,
        is_leader: bool = True,
    ) -> None:
        self.tp: TopicPartition = log.tp
        self.log = log
        self.state = state
        self.is_leader = is_leader
        self.closed = False
        self.flushing = False
        self.flush_before_ack = acknowledged_by_sync(log.config)
        self.request_flush = request_flush
        self.fetchers: dict[FetchPartition, None] = {}
        # (offset, callback) in order of offset: appends only grow.
        self.waiting: deque[tuple[int, Committed]] = deque()

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
        """min(first open transaction, high watermark); without transactions it is the high watermark."""
        return self.state.high_watermark

    def append(self, batch: Buffer, header: BatchHeader, now_ms: int) -> int:
        """Append one validated batch as leader; gives its base offset. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
        base_offset = self.log.append(batch, header, self.state.leader_epoch, now_ms)
        if self.flush_before_ack:
            self.request_flush(self)
            return base_offset
        self.advance(header[1] + 12)
        return base_offset

    def advance(self, size: int) -> None:
        """The leader's claim has grown, by about `size` bytes: commit what can be, and wake who waits for it."""
        log = self.log
        claim = log.recovery_point if self.flush_before_ack else log.log_end_offset
        state = self.state
        if not state.advance(claim):
            return
        waiting = self.waiting
        while waiting and waiting[0][0] <= state.high_watermark:
            waiting.popleft()[1](ErrorCode.NONE)
        self.wake(size)

    def wake(self, size: int) -> None:
        """Tell the fetch sessions that this partition has changed."""
        for fetched in self.fetchers:
            session = fetched.session
            session.ready[fetched] = None
            if session.waiter is not None:
                session.waiter.gained(size)

    def on_committed(self, offset: int, callback: Committed) -> None:
        """Call back when everything below `offset` is committed, or with the reason why it never will be."""
        if self.closed:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.state.high_watermark >= offset:
            callback(ErrorCode.NONE)
        elif self.log.offline is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self.waiting.append((offset, callback))

    def fail_waiting(self, code: ErrorCode) -> None:
        """Leadership or the disk is lost: nobody who waits here will see the offset committed."""
        waiting, self.waiting = self.waiting, deque()
        for _, callback in waiting:
            callback(code)
        self.wake(0)

    def close(self) -> None:
        """The partition leaves this broker: sessions look for it again by its name."""
        self.closed = True
        self.is_leader = False
        for fetched in self.fetchers:
            fetched.target = None
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetchers.clear()

    def check_leader(self, current_epoch: int) -> None:
        """Fence a client whose metadata is of another leader epoch (KIP-320); -1 is not checked."""
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if current_epoch == -1 or current_epoch == self.state.leader_epoch:
            return
        if current_epoch < self.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
