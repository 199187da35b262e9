"""What the leader of a partition does for one share group: loads and stores its state, and reads records for members.

One read at a time, and one write: changes that come meanwhile are stored together by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.share.share_partition_state import (
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    PersistedState,
    SharePartitionKey,
)
from kbroker.replica.fetch.filter_scan import LookBudget
from kbroker.replica.fetch.read_filter import combine
from kbroker.runtime.event_log import EventLogger
from kbroker.share.delivery import Acknowledgement, AcknowledgeType, Acquired, DeliveryPolicy, ShareStats
from kbroker.share.partition import SharePartition, StateChange
from kbroker.share.record_scan import ShareRead, ShareReadRequest, scan
from kbroker.share.start_offset import find_start_offset
from kbroker.storage.log.log_reads import bytes_between
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future, Lock, Task

    from kbroker.coordinator.share.persister import ShareStatePersister
    from kbroker.replica.fetch.read_filter import ReadView
    from kbroker.replica.partition import Partition
    from kbroker.runtime.deadlines import DeadlineTimer
    from kbroker.runtime.environment import Environment
    from kbroker.share.group_settings import GroupSettings
    from kbroker.share.session import ShareSession

log = EventLogger("kbroker.share")

# The coordinator does not know this leader or this state any more: another object may have to be read.
FENCED = (
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NOT_LEADER_OR_FOLLOWER,
)  # fmt: skip
# What is read of the log behind the batches with as many offsets as a request asks for, since the last one is not full.
READ_AHEAD_BYTES = 64 << 10
# The pause before a state is read again whose coordinator is not available.
LOAD_RETRY_S = 0.5
# As Kafka reports them to consumers.
_CLIENT_ERRORS = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    # The state is not initialized: no member of the group was assigned the partition.
    ErrorCode.INVALID_REQUEST: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def client_error(code: int) -> ErrorCode:
    """Return how consumers get an error of the share coordinator."""
    known = ErrorCode(code)
    return _CLIENT_ERRORS.get(known, known)


class AcquireRequest(NamedTuple):
    """What a session asks for. `is_strict`: not more than `max_records` (record_limit, KIP-1206).

    `deadline_s`: a search for records ends at this time of the event loop.
    """

    session: ShareSession
    max_records: int
    batch_size: int
    is_strict: bool
    max_bytes: int
    deadline_s: float = 0.0


class AcquiredRecords(NamedTuple):
    """Batches of the log, and which of their records the member has."""

    records: bytes
    acquired: list[Acquired]

    @property
    def record_count(self) -> int:
        return sum([each.last - each.first + 1 for each in self.acquired])


NOTHING = AcquiredRecords(b"", [])


class ShareGroupParts(NamedTuple):
    """What all leaders of a broker share. `timer`: of the locks. `large_batch`: one thread at a time may decompress a
    large batch. `on_dead_letters`: called when there are records that need a dead letter. `on_idle`: called when no
    session fetches the partition any more, and all of its state is stored. `stats`: of all of them."""

    environment: Environment
    persister: ShareStatePersister
    settings: Callable[[str], GroupSettings]
    timer: DeadlineTimer[SharePartitionLeader]
    large_batch: Lock
    on_dead_letters: Callable[[SharePartitionLeader], None]
    on_idle: Callable[[SharePartitionLeader], None]
    stats: ShareStats


class SharePartitionLeader:
    """`state`: None until it is read. `failure`: why this object cannot be used any more. `sessions`: those that fetch
    the partition. Their requests that wait look again when there may be something to acquire."""

    def __init__(
        self, parts: ShareGroupParts, key: SharePartitionKey, partition: Partition, view: ReadView | None
    ) -> None:
        self.key = key
        self.partition = partition
        self.view = view
        self.state: SharePartition | None = None
        self.failure: KafkaError | None = None
        self.sessions: dict[ShareSession, None] = {}
        self.leader_epoch = partition.leader_epoch
        # The records whose lock has expired.
        self.lock_timeouts = 0
        self._parts = parts
        self._environment = parts.environment
        # Those that wait to be stored, and those that are being stored.
        self._changes: list[tuple[StateChange, Future[ErrorCode]]] = []
        self._submitted: list[tuple[StateChange, Future[ErrorCode]]] = []
        self._must_write = self._is_reading = self._is_contended = self._is_watching = False
        self._tasks: dict[Task[None], None] = {}
        self._writing: Task[None] | None = None
        self.start_task(self._load())

    def start_task(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        task = self._environment.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    @property
    def settings(self) -> GroupSettings:
        return self._parts.settings(self.key.group_id)

    @property
    def _policy(self) -> DeliveryPolicy:
        return self.settings.delivery

    @property
    def is_current(self) -> bool:
        """Whether the partition is still led in the leader epoch in which the state was read."""
        partition, view = self.partition, self.view
        return (
            self.failure is None
            and partition.is_leader
            and not partition.is_closed
            and partition.leader_epoch == self.leader_epoch
            and (view is None or view.is_current)
        )

    # Loading, and the end.

    async def _load(self) -> None:
        """Read the state. While the coordinator is not available, the requests of consumers wait."""
        while self.failure is None and self.state is None:
            try:
                stored = await self._parts.persister.read(self.key, self.leader_epoch)
                await self._begin(stored)
            except KafkaError as error:
                if client_error(error.code) is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    self.close(error)
                else:
                    await self._environment.sleep(LOAD_RETRY_S)
            except Exception as error:
                log.failure("loading a share partition failed", error, partition=self.partition.tp)
                self.close(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    async def _begin(self, stored: PersistedState) -> None:
        clock = self._environment.clock
        if stored.start_offset == UNINITIALIZED_START_OFFSET:
            start = await self._environment.offload(
                find_start_offset,
                self.partition,
                self.settings.config.share_auto_offset_reset,
                self._end_offset(),
                clock.now_ms(),
            )
            stored = stored._replace(start_offset=start)
            # A start at the latest offset must be the same for the next leader.
            self._must_write = True
        if self.failure is None:
            self.state = SharePartition(stored, self.leader_epoch, clock.now_ms() - clock.mono_ms())
            self._after_change()

    def close(self, error: KafkaError) -> None:
        """Fail what waits. The next request gets a new object."""
        if self.failure is None:
            self.failure = error
            self._parts.timer.cancel(self)
            for _, done in (*self._submitted, *self._changes):
                _finish(done, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._changes = []
            self.wake()

    def stop(self) -> None:
        self.close(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for task in list(self._tasks):
            task.cancel()

    # Changes.

    def acknowledge(self, member_id: str, acknowledgements: list[Acknowledgement]) -> Future[ErrorCode]:
        """Return a future of the error code, which is done when the change is persisted. Raises KafkaError."""
        if self.failure is not None:
            raise self.failure
        if self.state is None:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        if not self.settings.config.share_renew_acknowledge_enable and any(
            each.type == AcknowledgeType.RENEW for each in acknowledgements
        ):
            message = "Renewing acquisition locks is not enabled for the group."
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
        now_ms = self._environment.clock.mono_ms()
        change = self.state.acknowledge(member_id, acknowledgements, self._policy, now_ms)
        for each in acknowledgements:
            self._parts.stats.acknowledged[each.type] += each.last - each.first + 1
        return self.submit(change)

    def release(self, member_id: str) -> Future[ErrorCode] | None:
        """Release what a member has, because its session has ended. Returns None if that is nothing."""
        if self.state is None or self.failure is not None:
            return None
        change = self.state.release_member(member_id, self._policy)
        return self.submit(change) if change.updates else None

    def on_deadline(self) -> None:
        """Called when a lock expires, or a delayed record is due."""
        if self.state is not None and self.failure is None:
            change = self.state.expire_locks(self._policy, self._environment.clock.mono_ms())
            if change.updates:
                self.lock_timeouts += change.record_counts().total()
                self.submit(change)
            self._after_change()

    def submit(self, change: StateChange) -> Future[ErrorCode]:
        """Store a change. The future is done when it is committed or rolled back."""
        done: Future[ErrorCode] = self._environment.loop.create_future()
        if not change.updates:
            # A renewal of locks, which are not stored.
            done.set_result(ErrorCode.NONE)
            self._set_timer()
        elif self.failure is not None:
            done.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._changes.append((change, done))
            self._start_writing()
        return done

    def _start_writing(self) -> None:
        if self._writing is None and (self._changes or self._must_write):
            self._writing = self.start_task(self._write())

    async def _write(self) -> None:
        # Those of one iteration of the event loop are stored together.
        await self._environment.yield_to_loop()
        while self.state is not None and self.failure is None and (self._changes or self._must_write):
            submitted, self._changes, self._must_write = self._changes, [], False
            self._submitted = submitted
            write, undo = self.state.begin_write([change for change, _ in submitted])
            try:
                await self._parts.persister.write(self.key, write)
                code, fenced = ErrorCode.NONE, None
            except KafkaError as error:
                code = client_error(error.code)
                undo()
                fenced = error if error.code in FENCED else None
            except Exception as error:
                log.failure("storing a share partition failed", error, partition=self.partition.tp)
                code, fenced = ErrorCode.UNKNOWN_SERVER_ERROR, None
                undo()
            for change, done in submitted:
                if code:
                    self.state.roll_back(change, self._environment.clock.mono_ms())
                else:
                    self._parts.stats.states.update(change.record_counts())
                    self.state.commit(change)
                _finish(done, code)
            self._submitted = []
            if fenced is not None:
                self.close(KafkaError(code, fenced.message))
            self._after_change()
        self._writing = None
        self.check_idle()

    def check_idle(self) -> None:
        """Report if this object is not needed any more: the next one reads the state, which may be another one then."""
        if self.sessions:
            return
        is_busy = self._writing is not None or self._changes
        if self.failure is not None or self.state is None or (self.state.is_idle and not is_busy):
            self._parts.on_idle(self)

    def _after_change(self) -> None:
        """Called when records may have become available, or need a dead letter."""
        if self.state is None or self.failure is not None:
            return
        self._start_writing()
        self._set_timer()
        if self.state.dead_letters():
            self._parts.on_dead_letters(self)
        self.wake()

    def _set_timer(self) -> None:
        if self.state is not None and self.failure is None:
            deadline_ms = self.state.next_deadline_ms(self._environment.clock.mono_ms())
            if deadline_ms is not None:
                self._parts.timer.set(self, deadline_ms)

    def wake(self) -> None:
        for session in list(self.sessions):
            session.wake()

    # Reading.

    def _end_offset(self) -> int:
        """Return the offset up to which the group reads."""
        partition = self.partition
        end = partition.last_stable_offset if self.settings.read_committed else partition.high_watermark
        return end if partition.log.health.offline is None else min(end, partition.log.readable_end)

    def available_bytes(self) -> int:
        """Return how many bytes of the log there are from the next offset to acquire on."""
        offset = None if self.state is None else self._next_offset()
        if offset is None or offset >= self._end_offset():
            self._watch()
            return 0
        return bytes_between(self.partition.log, offset, self._end_offset()) or 1

    async def acquire(self, request: AcquireRequest) -> AcquiredRecords:
        """Read and acquire records; none if there are none now, or another member reads. Raises KafkaError."""
        if self._is_reading or self.state is None:
            self._is_contended = True
            return NOTHING
        self._is_reading, self._is_contended = True, False
        try:
            while True:
                if self.failure is not None:
                    raise KafkaError(client_error(self.failure.code), self.failure.message)
                offset = self._next_offset()
                if offset is None or offset >= self._end_offset():
                    self._watch()
                    return NOTHING
                try:
                    read = await self._read(offset, request)
                except KafkaError as error:
                    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    # Retention has deleted the records meanwhile.
                    continue
                if self.failure is not None or request.session.is_closed:
                    return NOTHING
                found = self._acquire(read, request)
                is_over = read.scanned.last < offset or self._environment.loop.time() >= request.deadline_s
                if found.acquired:
                    return found
                # Holes only. They are stored now, since no acknowledgement follows.
                self._must_write = True
                self._start_writing()
                if is_over:
                    return NOTHING
                await self._environment.yield_to_loop()
        finally:
            self._is_reading = False
            if self._is_contended:
                self.wake()

    def _next_offset(self) -> int | None:
        assert self.state is not None
        self.state.archive_before(self.partition.log.log_start_offset)
        return self.state.next_fetch_offset(self._policy, self._environment.clock.mono_ms())

    def _acquire(self, read: ShareRead, request: AcquireRequest) -> AcquiredRecords:
        assert self.state is not None
        acquired = self.state.acquire(
            request.session.member_id, [batch.scanned for batch in read.batches], read.scanned, self._policy,
            self._environment.clock.mono_ms(), request.max_records, request.batch_size, request.is_strict,
        )  # fmt: skip
        if not acquired:
            return NOTHING
        self._set_timer()
        found = AcquiredRecords(read.records(acquired[0].first, acquired[-1].last), acquired)
        self._parts.stats.states[DeliveryState.ACQUIRED] += found.record_count
        return found

    async def _read(self, offset: int, wanted: AcquireRequest) -> ShareRead:
        """Read from the log: at once what is in memory, else in a thread. Raises KafkaError."""
        partition, clock, offload = self.partition, self._environment.clock, self._environment.offload
        read_filter = partition.read_filter
        if self.view is not None:
            read_filter = combine(read_filter, self.view.read_filter)
        max_bytes = wanted.max_bytes
        if read_filter is None:
            needed = bytes_between(partition.log, offset, offset + wanted.max_records) + READ_AHEAD_BYTES
            max_bytes = min(max_bytes, needed)
        request = ShareReadRequest(read_filter, offset, self._end_offset(), max_bytes, self.settings.read_committed)
        read = scan(partition.log, request, LookBudget.for_loop(clock), clock, False)
        if read is None:
            read = await offload(scan, partition.log, request, LookBudget.for_thread(clock, False), clock, True)
        if read is None:
            async with self._parts.large_batch:
                read = await offload(scan, partition.log, request, LookBudget.for_thread(clock, True), clock, True)
        assert read is not None
        return read

    def _watch(self) -> None:
        """Wake those who wait when more is committed, or this broker does not lead the partition any more."""
        if not self._is_watching:
            self._is_watching = True
            self.partition.on_committed(self.partition.high_watermark + 1, self._on_committed)

    def _on_committed(self, code: ErrorCode) -> None:
        self._is_watching = False
        if code:
            self.close(KafkaError(code))
        else:
            # Others of the same append come first.
            self._environment.loop.call_soon(self.wake)


def _finish(done: Future[ErrorCode], code: ErrorCode) -> None:
    if not done.done():
        done.set_result(code)
