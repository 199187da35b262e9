"""One partition of an internal topic that this broker leads: its state, and the writes in flight.

    operation -> queued records -> one append per loop iteration -> high watermark -> replay, in log order -> response

Operations see committed state only. Writes are pipelined: an append does not wait for the one before it to be
committed. When appended records can no longer be committed, this broker has lost the partition: it is closed, and all
writes in flight fail. It is loaded again when this broker is elected again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.internal_log import InternalLog
from kbroker.coordinator.runtime.batches import EncodedRecord, encode_batch, split_into_batches
from kbroker.coordinator.runtime.key_lock import KeyLock
from kbroker.coordinator.runtime.loader import END_OF_LOG, LoadedMarker, read_chunk_blocking
from kbroker.coordinator.runtime.operation import (
    NO_LOCK,
    NO_PRODUCER,
    CoordinatorResult,
    CoordinatorShard,
    LockMode,
    RecordProducer,
    Respond,
    ignore,
)
from kbroker.runtime.timer import DeadlineTimer
from kbroker.storage.producers.transaction_marker import TransactionMarker
from protocol.errors import NO_ERROR, ErrorCode, MalformedError

if TYPE_CHECKING:
    from asyncio import Future

    from kbroker.runtime.environment import Environment

S = TypeVar("S", bound=CoordinatorShard)
T = TypeVar("T")

NO_RESULT: CoordinatorResult[None] = CoordinatorResult(None)
# The number of records that are replayed in one iteration of the event loop while loading.
LOADED_RECORDS_PER_ITERATION = 2_000
# The number of writes that are appended and completed in one iteration of the event loop, which takes 2 or 3 ms.
WRITES_PER_ITERATION = 256


class CoordinatorState(Enum):
    LOADING = auto()
    ACTIVE = auto()
    CLOSED = auto()


ACTIVE = CoordinatorState.ACTIVE


class RuntimeConfig(NamedTuple):
    """The broker configs for writing and reading an internal topic.

    `partition_count` applies while the topic does not exist. Writes are collected for `append_linger_ms`; below 1, for
    one iteration of the event loop. `compression_codec` is the codec's number in record batches.
    """

    node_id: int
    partition_count: int
    max_batch_bytes: int
    load_buffer_bytes: int
    compression_codec: int = 0
    append_linger_ms: int = -1


class WriteEvent:
    """One operation, from its scheduling until its records are committed.

    `respond` is replaced by `ignore` when it has been called. `has_deadline`: whether the timeout is running.
    """

    __slots__ = ("encoded", "has_deadline", "key", "mode", "operation", "producer", "respond", "result", "timeout_ms")

    def __init__(
        self,
        operation: Callable[[Any], CoordinatorResult[Any]],
        respond: Respond[Any],
        key: str,
        mode: LockMode,
        timeout_ms: int | None,
        producer: RecordProducer,
    ) -> None:
        self.operation = operation
        self.respond = respond
        self.key = key
        self.mode = mode
        self.timeout_ms = timeout_ms
        self.producer = producer
        self.has_deadline = False
        self.result: CoordinatorResult[Any] = NO_RESULT
        self.encoded: Sequence[EncodedRecord] = ()

    def complete(self, response: Any, error: KafkaError | None = None) -> None:
        """Respond, unless the request has timed out."""
        respond, self.respond = self.respond, ignore
        respond(response, error)


def complete(future: Future[T], response: T) -> None:
    """Set the response, unless the future is done because the broker is stopping."""
    if not future.done():
        future.set_result(response)


def complete_or_fail(future: Future[T], response: T, error: KafkaError | None) -> None:
    """Set the response, or the error if there is one, as `complete` does."""
    if error is None:
        complete(future, response)
    elif not future.done():
        future.set_exception(error)


class CoordinatorContext(Generic[S]):
    """The runtime's part of one partition. `shard` is the state, `epoch` the leader epoch of the partition."""

    shard: S

    def __init__(
        self,
        environment: Environment,
        log: InternalLog,
        tp: TopicPartition,
        epoch: int,
        config: Callable[[], RuntimeConfig],
    ) -> None:
        self.tp = tp
        self.epoch = epoch
        self.state = CoordinatorState.LOADING
        self._environment = environment
        self._log = log
        self._config = config
        self._locks: dict[str, KeyLock] = {}
        self._queue: list[WriteEvent] = []
        # Batches that are appended and not yet committed, in log order: (log end offset after the batch, its writes).
        self._appended: deque[tuple[int, list[WriteEvent]]] = deque()
        self._timeouts: DeadlineTimer[WriteEvent] = DeadlineTimer(environment, _time_out)

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

        It is called immediately if there are none. The error is the KafkaError that the operation raises, or the reason
        why its records cannot be committed. It is COORDINATOR_NOT_AVAILABLE if they are not committed within
        `timeout_ms` of the append, though they may be later.
        """
        event = WriteEvent(operation, respond, key, mode, timeout_ms, producer)
        lock = None if mode is NO_LOCK else self._locks.get(key)
        if lock is not None and lock.must_wait(mode):
            lock.wait(partial(self._run, event), mode)
        else:
            self._run(event)

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

    def locked_keys(self) -> list[str]:
        """Return the keys that have records in flight or waiting operations."""
        return list(self._locks)

    def _run(self, event: WriteEvent) -> None:
        if self.state is not ACTIVE:
            event.complete(None, KafkaError(ErrorCode.NOT_COORDINATOR))
            return
        try:
            event.result = event.operation(self.shard)
        except KafkaError as error:
            event.complete(None, error)
            return
        if event.result.records:
            self._enqueue(event)
        else:
            event.complete(event.result.response)

    # Appends.

    def _enqueue(self, event: WriteEvent) -> None:
        event.encoded = list(map(self.shard.encode, event.result.records))
        if event.mode is not NO_LOCK:
            lock = self._locks.get(event.key)
            if lock is None:
                lock = self._locks[event.key] = KeyLock()
            lock.acquire(event.mode)
        if not self._queue:
            linger_ms = self._config().append_linger_ms
            if linger_ms > 0:
                self._environment.loop.call_later(linger_ms / 1000, self._flush)
            else:
                self._environment.loop.call_soon(self._flush)
        self._queue.append(event)

    def _flush(self) -> None:
        queue, self._queue = self._queue[:WRITES_PER_ITERATION], self._queue[WRITES_PER_ITERATION:]
        if self._queue:
            self._environment.loop.call_soon(self._flush)
        config = self._config()
        for events in split_into_batches(queue, config.max_batch_bytes):
            self._append(events, config.compression_codec)

    def _append(self, events: list[WriteEvent], codec: int) -> None:
        if self.state is not ACTIVE:
            self._fail_all(events, ErrorCode.NOT_COORDINATOR)
            return
        producer = events[0].producer
        batch = encode_batch(events, codec, self._environment.clock.now_ms())
        try:
            end_offset = self._log.append_internal(self.tp, batch, guard=producer.guard, verify=producer.verify)
        except KafkaError as error:
            self._on_append_failed(events, codec, error.code)
            return
        self._appended.append((end_offset, events))
        self._log.on_committed(self.tp, end_offset, partial(self._on_committed, end_offset))
        if self._appended and self._appended[-1][1] is events:
            self._start_timeouts(events)

    def _start_timeouts(self, events: list[WriteEvent]) -> None:
        """Start the timeouts of writes whose records were not committed at once."""
        now_ms = self._environment.clock.mono_ms()
        for event in events:
            if event.timeout_ms is not None:
                self._timeouts.set(event, now_ms + event.timeout_ms)
                event.has_deadline = True

    def _on_append_failed(self, events: list[WriteEvent], codec: int, error: ErrorCode) -> None:
        """Retry each write alone. Nothing was appended, and one write may have made the batch too large."""
        if error is ErrorCode.MESSAGE_TOO_LARGE and len(events) > 1:
            for event in events:
                self._append([event], codec)
        else:
            self._fail_all(events, coordinator_error(error))

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
                for record in event.result.records:
                    self.shard.replay(record, offset, event.producer.producer_id)
                    offset += 1
                self._finish(event, NO_ERROR)

    def _finish(self, event: WriteEvent, error: ErrorCode) -> None:
        """Send the response of an event whose records are replayed or have failed, and release its lock."""
        if event.has_deadline:
            self._timeouts.cancel(event)
        if error is NO_ERROR:
            event.result.on_committed()
            event.complete(event.result.response)
        else:
            event.result.on_failed(error)
            event.complete(None, KafkaError(error))
        if event.mode is not NO_LOCK:
            lock = self._locks[event.key]
            lock.release(event.mode)
            if lock.is_idle:
                del self._locks[event.key]

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
        """Replay the whole partition. Raises KafkaError when it cannot be read."""
        offset = 0
        while self.state is CoordinatorState.LOADING:
            try:
                offset, items = await self._environment.offload(
                    read_chunk_blocking, self._log, self.tp, offset, self._config().load_buffer_bytes, self.shard.decode
                )
            except (OSError, ImportError, MemoryError, LookupError, MalformedError) as error:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.tp} cannot be loaded: {error}") from error
            if offset == END_OF_LOG:
                return
            for number, item in enumerate(items, 1):
                if number % LOADED_RECORDS_PER_ITERATION == 0:
                    await self._environment.yield_to_loop()
                if self.state is not CoordinatorState.LOADING:
                    return
                if isinstance(item, LoadedMarker):
                    self.shard.replay_end_transaction(*item)
                else:
                    self.shard.replay(*item)

    def activate(self) -> None:
        """Allow operations, since the partition is loaded."""
        if self.state is CoordinatorState.LOADING:
            self.state = ACTIVE
            self.shard.on_loaded()

    def close(self, error: ErrorCode) -> None:
        """Fail all writes in flight and all waiting requests with the error."""
        if self.state is CoordinatorState.CLOSED:
            return
        self.state = CoordinatorState.CLOSED
        appended, self._appended = self._appended, deque()
        queue, self._queue = self._queue, []
        for _, events in appended:
            self._fail_all(events, error)
        self._fail_all(queue, error)
        self._timeouts.stop()
        self.shard.on_unloaded(error)


def _time_out(event: WriteEvent) -> None:
    event.complete(None, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))


_COORDINATOR_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """Translate an error of the log to one of the coordinator (CoordinatorOperationExceptionHelper in Kafka)."""
    return _COORDINATOR_ERRORS.get(error, error)
