"""One partition of an internal topic that this broker leads: its state, and the writes in flight.

    operation -> queued records -> one append per loop iteration -> high watermark -> replay, in log order -> response

Writes are pipelined: an append does not wait for the one before it to be committed. When appended records can no longer
be committed, this broker has lost the partition: it is closed, and all writes in flight fail. Each leader epoch has its
own context, which loads the partition again, even if the leader stays the same: another one may have led in between.

The records of ORDERED operations are replayed when they are queued, so that the next operation of their key sees them;
responses still wait for the high watermark. If they cannot be appended, the state has what the log has not: the context
is closed, and another one loads the partition in the same leader epoch.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kbroker.common import NO_PRODUCER_ID, KafkaError, TopicPartition
from kbroker.coordinator.internal_log import TOO_LARGE, InternalLog, coordinator_error
from kbroker.coordinator.runtime.key_lock import KeyLock
from kbroker.coordinator.runtime.loader import PartitionLoader
from kbroker.coordinator.runtime.operation import (
    EXCLUSIVE,
    NO_LOCK,
    NO_PRODUCER,
    ORDERED,
    SHARED,
    UNKNOWN_OFFSET,
    CoordinatorResult,
    CoordinatorShard,
    LockMode,
    RecordProducer,
    Respond,
    ignore,
)
from kbroker.coordinator.runtime.write_event import (
    NO_RESULT,
    WriteEvent,
    complete_or_fail,
    encode_batch,
    fits_into_batches,
    next_records,
    split_into_batches,
    time_out,
)
from kbroker.runtime.deadlines import DeadlineTimer
from kbroker.runtime.turns import paced
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import NO_ERROR, ErrorCode

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.runtime.environment import Environment

S = TypeVar("S", bound=CoordinatorShard)
T = TypeVar("T")

# The number of writes that are appended and completed in one iteration of the event loop, which takes 2 or 3 ms.
WRITES_PER_ITERATION = 256
# Writes with more records are encoded in turns.
SMALL_WRITE = 64


class CoordinatorState(Enum):
    LOADING = auto()
    ACTIVE = auto()
    CLOSED = auto()


ACTIVE = CoordinatorState.ACTIVE


class RuntimeConfig(NamedTuple):
    """The broker configs for writing and reading an internal topic.

    `partition_count` applies while the topic does not exist. Writes are collected for `append_linger_ms`, or for one
    iteration of the event loop if that is below 1. `compression_codec` is the codec's number in record batches.
    """

    node_id: int
    partition_count: int
    max_batch_bytes: int
    load_buffer_bytes: int
    compression_codec: int = 0
    append_linger_ms: int = -1


class CoordinatorContext(Generic[S]):
    """The runtime's part of one partition in one leader epoch. `shard` is the state.

    `reload` is called when the context has been closed although this broker may still lead the partition.
    """

    shard: S

    def __init__(
        self,
        environment: Environment,
        log: InternalLog,
        tp: TopicPartition,
        epoch: int,
        config: Callable[[], RuntimeConfig],
        reload: Callable[[CoordinatorContext[S]], None] = ignore,
    ) -> None:
        self.tp = tp
        self.epoch = epoch
        self.state = CoordinatorState.LOADING
        self._environment = environment
        self._log = log
        self._config = config
        self._reload = reload
        self._locks: defaultdict[str, KeyLock] = defaultdict(KeyLock)
        self._queue: list[WriteEvent] = []
        # Batches that are appended and not yet committed, in log order: (log end offset after the batch, its writes).
        self._appended: deque[tuple[int, list[WriteEvent]]] = deque()
        self._timeouts: DeadlineTimer[WriteEvent] = DeadlineTimer(
            environment.clock.mono_ms, environment.loop.call_later, time_out
        )
        # What `in_turns` has not finished.
        self._tasks: set[Task[None]] = set()
        self._loader = PartitionLoader(environment, log, tp, epoch, lambda: config().load_buffer_bytes)

    # Operations.

    def write(
        self,
        operation: Callable[[S], CoordinatorResult[T]],
        respond: Respond[T],
        key: str = "",
        mode: LockMode = LockMode.NONE,
        timeout_ms: int | None = None,
        producer: RecordProducer = NO_PRODUCER,
    ) -> None:
        """Run an operation when the lock of its key admits it, and call `respond` once its records are committed.

        It is called immediately if there are none, or when the ORDERED writes of the key are committed. The error is
        the KafkaError that the operation raises, or the reason why its records cannot be committed. It is
        COORDINATOR_NOT_AVAILABLE if they are not committed within `timeout_ms` of the append, though they may be later.
        """
        event = WriteEvent(operation, respond, key, mode, timeout_ms, producer)
        if mode is NO_LOCK:
            self._run(event)
            return
        lock = self._locks.get(key)
        run = self._run if mode is SHARED else self._run_alone
        if lock is not None and lock.must_wait(mode):
            lock.wait(partial(run, event), mode)
        else:
            run(event)

    def schedule_write(
        self,
        operation: Callable[[S], CoordinatorResult[T]],
        key: str = "",
        mode: LockMode = LockMode.NONE,
        timeout_ms: int | None = None,
        producer: RecordProducer = NO_PRODUCER,
    ) -> Future[T]:
        """Run an operation as `write` does, and return the future of its response. The future raises the error."""
        future: Future[T] = self._environment.loop.create_future()
        self.write(operation, partial(complete_or_fail, future), key, mode, timeout_ms, producer)
        return future

    def post(
        self, operation: Callable[[S], CoordinatorResult[Any]], key: str = "", mode: LockMode = LockMode.NONE
    ) -> None:
        """Run an operation as `write` does, and ignore its response or error."""
        self.write(operation, ignore, key, mode)

    async def wait_until_committed(self) -> None:
        """Wait until everything that operations have seen so far is committed. Raises KafkaError if it cannot be."""
        last = self._queue[-1] if self._queue else self._appended[-1][1][-1] if self._appended else None
        if last is not None:
            future: Future[None] = self._environment.loop.create_future()
            read = WriteEvent(lambda _: NO_RESULT, partial(complete_or_fail, future), "", NO_LOCK, None, NO_PRODUCER)
            self._add_read(last, read)
            await future

    def is_locked(self, key: str) -> bool:
        """Return whether a key has records in flight or waiting operations."""
        return key in self._locks

    def locked_keys(self) -> list[str]:
        """Return the keys that have records in flight or waiting operations."""
        return list(self._locks)

    def in_turns(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in turns: what it does after the first one is done in the background."""
        rest = self._environment.turns.call(function, *arguments)
        if rest is not None:
            task = self._environment.loop.create_task(rest)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _run_alone(self, event: WriteEvent) -> None:
        """Run an operation in turns, so a large group does not delay others. No other one of its key runs meanwhile."""
        self._locks[event.key].is_held = True
        self.in_turns(self._run, event)

    def _run(self, event: WriteEvent) -> None:
        """Run an operation, and queue its records. Without any, respond when all that it may have seen is committed."""
        try:
            if self.state is not ACTIVE:
                self._complete(event, ErrorCode.NOT_COORDINATOR)
                return
            try:
                event.result = event.operation(self.shard)
            except KafkaError as error:
                event.error = error
            if event.result.records:
                self._enqueue(event)
                return
            lock = self._locks.get(event.key)
            if lock is None or lock.last_write is None or event.mode is NO_LOCK:
                self._complete(event, NO_ERROR)
            else:
                self._add_read(lock.last_write, event)
        finally:
            if event.mode is ORDERED or not (event.mode is NO_LOCK or event.mode is SHARED or event.encoded):
                self._release(event.key, EXCLUSIVE)

    def _add_read(self, write: WriteEvent, read: WriteEvent) -> None:
        """Respond to an operation without records when a write is committed."""
        if write.reads is None:
            write.reads = []
        write.reads.append(read)
        self._start_timeouts([read])

    def _release(self, key: str, mode: LockMode) -> None:
        if self._locks[key].release(mode):
            del self._locks[key]

    # Appends.

    def _enqueue(self, event: WriteEvent) -> None:
        records: Iterable[Any] = event.result.records
        if len(event.result.records) > SMALL_WRITE and event.mode is not SHARED:
            # A commit that pauses would be overtaken by those after it.
            records = paced(records)
        event.encoded = list(map(self.shard.encode, records))
        if event.mode is ORDERED:
            if not self._replay_uncommitted(event):
                return
            lock = self._locks[event.key]
            lock.ordered += 1
            lock.last_write = event
        elif event.mode is SHARED:
            self._locks[event.key].shared += 1
        self._queue.append(event)
        if len(self._queue) == 1:
            linger_ms = self._config().append_linger_ms
            if linger_ms > 0:
                self._environment.loop.call_later(linger_ms / 1000, self._flush)
            else:
                self._environment.loop.call_soon(self._flush)

    def _flush(self) -> None:
        queue, self._queue = self._queue[:WRITES_PER_ITERATION], self._queue[WRITES_PER_ITERATION:]
        if self._queue:
            self._environment.loop.call_soon(self._flush)
        if self.state is not ACTIVE:
            self._fail_all(queue, ErrorCode.NOT_COORDINATOR)
            return
        config = self._config()
        try:
            max_bytes = min(config.max_batch_bytes, self._log.max_append_bytes(self.tp))
        except KafkaError as error:
            self._on_append_failed(queue, error.code)
            return
        batches = split_into_batches(queue, max_bytes)
        for events in batches:
            if not self._append(events, max_bytes, config.compression_codec):
                if not self._queue:
                    self._environment.loop.call_soon(self._flush)
                self._queue[:0] = chain(events, *batches)
                break

    def _append(self, events: list[WriteEvent], max_bytes: int, codec: int) -> bool:
        """Append a batch of writes, or fail them. Returns False if there are further records, of a large write."""
        if self.state is not ACTIVE:
            self._fail_all(events, ErrorCode.NOT_COORDINATOR)
            return True
        records, producer = next_records(events, max_bytes), events[0].producer
        batch = encode_batch(records, producer, codec, self._environment.clock.now_ms())
        try:
            end_offset = self._log.append_internal(self.tp, batch, guard=producer.guard, verify=producer.verify)
        except KafkaError as error:
            if error.code in TOO_LARGE and len(events) > 1:
                # One of them has made the batch too large.
                for event in events:
                    self._append([event], max_bytes, codec)
            else:
                self._on_append_failed(events, error.code)
            return True
        if len(events) == 1:
            events[0].appended += len(records)
            if events[0].appended < len(events[0].encoded):
                return False
        self._appended.append((end_offset, events))
        self._log.on_committed(self.tp, end_offset, partial(self._on_committed, end_offset))
        if self._appended and self._appended[-1][1] is events:
            self._start_timeouts(events)
        return True

    def _start_timeouts(self, events: list[WriteEvent]) -> None:
        """Start the timeouts of writes whose records were not committed at once."""
        now_ms = self._environment.clock.mono_ms()
        for event in events:
            if event.timeout_ms is not None:
                self._timeouts.set(event, now_ms + event.timeout_ms)
                event.has_deadline = True

    def _on_append_failed(self, events: list[WriteEvent], error: ErrorCode) -> None:
        """Fail writes. If one is replayed already, or appended in part, the state differs from the log."""
        if any(event.mode is ORDERED or event.appended for event in events):
            self._queue[:0] = events
            self._close_and_reload(coordinator_error(error))
        else:
            self._fail_all(events, coordinator_error(error))

    def _replay_uncommitted(self, event: WriteEvent) -> bool:
        """Replay the records of an ORDERED write, which are queued next, unless the log would not accept them now."""
        try:
            max_bytes = min(self._config().max_batch_bytes, self._log.max_append_bytes(self.tp))
            if not fits_into_batches(event.encoded, max_bytes):
                raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE)
        except KafkaError as error:
            event.encoded = ()
            self._complete(event, coordinator_error(error.code))
            return False
        try:
            for record in paced(event.result.records):
                # It may have been closed while others ran.
                if self.state is ACTIVE:
                    self.shard.replay(record, UNKNOWN_OFFSET, NO_PRODUCER_ID)
        except Exception:
            # Half of it is replayed.
            self._close_and_reload(ErrorCode.UNKNOWN_SERVER_ERROR)
            raise
        return True

    # Commits.

    def _on_committed(self, end_offset: int, error: ErrorCode) -> None:
        """Replay the batches below `end_offset`, which the high watermark has reached, or fail them."""
        if self.state is not ACTIVE:
            return
        if error is not NO_ERROR:
            self.close(coordinator_error(error))
            return
        while self._appended and self._appended[0][0] <= end_offset:
            offset, events = self._appended.popleft()
            offset -= sum([len(event.encoded) for event in events])
            for event in events:
                if event.mode is ORDERED:
                    offset += len(event.encoded)
                else:
                    for record in event.result.records:
                        self.shard.replay(record, offset, event.producer.producer_id)
                        offset += 1
                self._finish(event, NO_ERROR)

    def _finish(self, event: WriteEvent, error: ErrorCode) -> None:
        """Send the response of an event whose records are replayed or have failed, and release its lock."""
        if event.mode is NO_LOCK or event.mode is SHARED or event.mode is ORDERED:
            self._settle(event, error)
        else:
            # A whole group may wait for the record, which stays locked until all are answered.
            self.in_turns(self._settle, event, error)

    def _settle(self, event: WriteEvent, error: ErrorCode) -> None:
        if event.mode is ORDERED and self._locks[event.key].last_write is event:
            # What it has replayed is committed: operations that the responses cause do not wait for it.
            self._locks[event.key].last_write = None
        self._complete(event, error)
        if event.reads is not None:
            for read in event.reads:
                self._complete(read, error)
        if event.mode is not NO_LOCK:
            self._release(event.key, event.mode)

    def _complete(self, event: WriteEvent, error: ErrorCode) -> None:
        """Respond, unless the request has timed out."""
        if event.has_deadline:
            self._timeouts.cancel(event)
        respond, event.respond = event.respond, ignore
        if error is NO_ERROR:
            event.result.on_committed()
            respond(event.result.response, event.error)
        else:
            event.result.on_failed(error)
            respond(None, KafkaError(error))

    def _fail_all(self, events: Sequence[WriteEvent], error: ErrorCode) -> None:
        for event in events:
            self._finish(event, error)

    def complete_transaction(self, marker: TransactionMarker, on_completed: Callable[[ErrorCode], None]) -> None:
        """Append a transaction marker, and replay it once it is committed; then call `on_completed`.

        Queued records of the transaction need not be appended before: the log rejects them after the marker.
        """

        def on_committed(error: ErrorCode) -> None:
            if error is NO_ERROR:
                if self.state is ACTIVE:
                    self.shard.replay_end_transaction(marker.producer_id, marker.committed)
                else:
                    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            on_completed(error)

        if self.state is ACTIVE:
            self._log.append_marker(self.tp, marker, on_committed)
        else:
            on_completed(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # Loading and closing.

    async def load(self) -> None:
        """Replay the whole partition, and wait until it is committed. Raises KafkaError when it cannot be read."""
        await self._loader.load(self.shard)

    def activate(self) -> None:
        """Allow operations, since the partition is loaded."""
        if self.state is CoordinatorState.LOADING:
            self.state = ACTIVE
            self.in_turns(self.shard.on_loaded)

    def close(self, error: ErrorCode) -> None:
        """Fail all writes in flight and all waiting requests with the error."""
        if self.state is CoordinatorState.CLOSED:
            return
        self.state = CoordinatorState.CLOSED
        self._loader.stop()
        in_flight = [event for _, events in self._appended for event in events] + self._queue
        self._appended, self._queue = deque(), []
        self._fail_all(in_flight, error)
        self._timeouts.stop()
        self.in_turns(self.shard.on_unloaded, error)

    def _close_and_reload(self, error: ErrorCode) -> None:
        """Discard the state, which differs from the log, and let another context load it again."""
        self.close(error)
        self._reload(self)
