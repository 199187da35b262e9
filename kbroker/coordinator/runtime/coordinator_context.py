"""One partition of a coordinator's topic: load it, append to it in batches, apply what is committed, then
answer.

    decide -> write() -> one append per loop turn -> high watermark -> apply, in log order -> done()

Decisions see committed state only. Writes pipeline: a batch does not wait for the one before it to be
committed. When an append that was accepted can no longer be committed, the partition is no longer ours to
write, and all that is under way fails; it is loaded again when this broker is elected again.

What transactions write, and their ends, go the same way; the state takes them in with their producer and their place
in the log, in operation as while loading.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, NamedTuple, Protocol, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.internal_log import InternalLog, TransactionMarker
from kbroker.coordinator.runtime.batches import NOBODY, Done, Producer, Write, build, gather
from kbroker.runtime.environment import Environment
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import body_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.control import COMMIT, control_type
from protocol.records.record import iter_records

R = TypeVar("R")

# A batch of the coordinators is small; this bounds what a corrupt one can cost while loading.
MAX_LOADED_BATCH = 64 << 20
LOADED_A_TURN = 2_000


class Status(Enum):
    LOADING = auto()
    ACTIVE = auto()
    CLOSED = auto()


class Loaded(NamedTuple, Generic[R]):
    """A record of the log: its offset, and the producer id when a transaction wrote it, else -1."""

    record: R
    offset: int
    producer_id: int


class Ended(NamedTuple):
    """The end of a producer's transaction in the log."""

    producer_id: int
    committed: bool


class Machine(Protocol[R]):
    """What a coordinator keeps of one partition."""

    def encode(self, record: R) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: bytes | None, value: bytes | None) -> R | None:
        """None: a record of a kind that is to be passed over. Called in a thread while loading."""
        ...

    def apply(self, record: R) -> None:
        """A record that this broker wrote outside of transactions is committed."""
        ...

    def load(self, item: Loaded[R] | Ended) -> None:
        """Something of the log, in order: all of it before the partition becomes active, then what is committed of
        transactions.
        """
        ...

    def lost(self, error: ErrorCode) -> None:
        """The partition was closed: whoever still waits gets the error."""
        ...


class Limits(NamedTuple):
    """Configs that a partition's log is written and read with. `codec` is its number in record batches.

    `linger_ms`: how long writes are gathered (group.coordinator.append.linger.ms); below 1 an append has what came in
    one turn of the loop. `load_bytes`: how much is read at a time (offsets.load.buffer.size).
    """

    batch_bytes: int
    codec: int = 0
    linger_ms: int = -1
    load_bytes: int = 5 << 20


class CoordinatorContext(Generic[R]):
    """The log's side of one coordinator partition."""

    def __init__(
        self,
        environment: Environment,
        log: InternalLog,
        tp: TopicPartition,
        machine: Machine[R],
        limits: Callable[[], Limits],
    ) -> None:
        """`limits` is asked at each append: the configs may change."""
        self.tp = tp
        self.status = Status.LOADING
        self._environment = environment
        self._log = log
        self._machine = machine
        self._limits = limits
        self._queue: list[Write[R]] = []
        # Appended and not yet committed: (log end offset after it, its writes), oldest first.
        self._appended: deque[tuple[int, list[Write[R]]]] = deque()

    # Loading.

    async def load(self) -> None:
        """Read the whole partition. Raises KafkaError when it cannot be read."""
        offset = 0
        while self.status is Status.LOADING:
            try:
                offset, items = await self._environment.offload(self._read_blocking, offset)
            except (OSError, LookupError, MalformedError) as error:
                raise KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.tp} cannot be loaded: {error}") from error
            if offset < 0:
                return
            await self._take_in(items)

    async def _take_in(self, items: Sequence[Loaded[R] | Ended]) -> None:
        """With turns of the loop between, since others are served meanwhile."""
        for number, item in enumerate(items):
            if number % LOADED_A_TURN == LOADED_A_TURN - 1:
                await self._environment.turn()
            if self.status is not Status.LOADING:
                return
            self._machine.load(item)

    def activate(self) -> None:
        if self.status is Status.LOADING:
            self.status = Status.ACTIVE

    def _read_blocking(self, offset: int) -> tuple[int, list[Loaded[R] | Ended]]:
        """One chunk of the log: (next offset, what it holds); -1 at the end."""
        data = self._log.read_internal_blocking(self.tp, offset, self._limits().load_bytes)
        items: list[Loaded[R] | Ended] = []
        next_offset = -1
        for pos, header in iter_headers(data):
            next_offset = header.next_offset
            body = decompress(header.codec, body_of(data, pos, header.size), MAX_LOADED_BATCH)
            for record in iter_records(body, header.count, header.base_timestamp):
                if header.is_control:
                    items.append(Ended(header.producer_id, control_type(record.key) == COMMIT))
                    continue
                found = self._machine.decode(record.key, record.value)
                if found is not None:
                    producer_id = header.producer_id if header.is_transactional else -1
                    items.append(Loaded(found, header.base_offset + record.offset_delta, producer_id))
        return next_offset, items

    # Writing.

    def write(self, records: Sequence[R], done: Done, producer: Producer = NOBODY) -> None:
        """Append records, at least one, together; within a transaction when they have a producer. `done` is called
        after they are applied, or with the reason why they never will be.
        """
        now_ms = self._environment.clock.now_ms()
        encoded = [(now_ms, *self._machine.encode(record), ()) for record in records]
        self._enqueue(Write(records, encoded, done, producer))

    def write_marker(self, marker: TransactionMarker, done: Done) -> None:
        """Append the end of a transaction. `done` is called after it is applied, or with the log's reason.

        What is queued need not go before it: what it ends and is not in the log yet, the log refuses afterwards.
        """

        def settled(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and self.status is not Status.ACTIVE:
                error = ErrorCode.NOT_COORDINATOR
            if error is ErrorCode.NONE:
                self._machine.load(Ended(marker.producer_id, marker.committed))
            done(error)

        if self.status is Status.ACTIVE:
            self._log.write_marker(self.tp, marker, settled)
        else:
            done(ErrorCode.NOT_COORDINATOR)

    def _enqueue(self, write: Write[R]) -> None:
        if not self._queue:
            linger_ms = self._limits().linger_ms
            if linger_ms > 0:
                self._environment.loop.call_later(linger_ms / 1000, self._flush)
            else:
                self._environment.loop.call_soon(self._flush)
        self._queue.append(write)

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        max_bytes, codec, *_ = self._limits()
        for writes in gather(queue, max_bytes):
            self._append(writes, codec)

    def _append(self, writes: list[Write[R]], codec: int) -> None:
        if self.status is not Status.ACTIVE:
            _settle(writes, ErrorCode.NOT_COORDINATOR)
            return
        producer = writes[0].producer
        try:
            end_offset = self._log.append_internal(
                self.tp, build(writes, codec), guard=producer.guard, verify=producer.verify
            )
        except KafkaError as error:
            self._refused(writes, codec, error.code)
            return
        self._appended.append((end_offset, writes))
        self._log.on_committed(self.tp, end_offset, lambda error: self._committed(end_offset, error))

    def _refused(self, writes: list[Write[R]], codec: int, error: ErrorCode) -> None:
        """Nothing was appended. A batch that is too large may be so because of one write: try each alone."""
        if error is ErrorCode.MESSAGE_TOO_LARGE and len(writes) > 1:
            for write in writes:
                self._append([write], codec)
        else:
            _settle(writes, coordinator_error(error))

    def _committed(self, end_offset: int, error: ErrorCode) -> None:
        if self.status is not Status.ACTIVE:
            return
        if error is not ErrorCode.NONE:
            self.close(coordinator_error(error))
            return
        while self._appended and self._appended[0][0] <= end_offset:
            end, writes = self._appended.popleft()
            if writes[0].producer is not NOBODY:
                self._take_transactional(writes, end)
                continue
            for write in writes:
                for record in write.records:
                    self._machine.apply(record)
                write.done(ErrorCode.NONE)

    def _take_transactional(self, writes: list[Write[R]], end_offset: int) -> None:
        """One batch of a transaction is committed."""
        place = end_offset - sum(len(write.records) for write in writes)
        for write in writes:
            for record in write.records:
                self._machine.load(Loaded(record, place, write.producer.producer_id))
                place += 1
            write.done(ErrorCode.NONE)

    def close(self, error: ErrorCode) -> None:
        """Stop: all that is under way fails."""
        if self.status is Status.CLOSED:
            return
        self.status = Status.CLOSED
        appended, self._appended = self._appended, deque()
        queue, self._queue = self._queue, []
        for _, writes in appended:
            _settle(writes, error)
        _settle(queue, error)
        self._machine.lost(error)


def _settle(writes: Sequence[Write[R]], error: ErrorCode) -> None:
    for write in writes:
        write.done(error)


def coordinator_error(error: ErrorCode) -> ErrorCode:
    """What clients of a coordinator are told of an error of its log."""
    if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        return ErrorCode.NOT_COORDINATOR
    if error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    ):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return error
