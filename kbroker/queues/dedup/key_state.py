"""The idempotency keys of a partition as its log has them: their loading, and their snapshots.

The log is the only source of truth. A broker that becomes the leader rebuilds the keys from the log, and then applies
its own appends. A leader's keys are those of its whole log, uncommitted records included, since each append depends on
those before it. A later leader may have a shorter log. It rebuilds the keys from its own log, and never receives them
from another broker.

A snapshot only saves replaying the whole log. Its file has the part of the log that it covers, and the encoded state:

    magic 4 | crc-32c 4 | topic id 16 | end offset 8 | leader epoch 4 | state

The state covers the log below the end offset. The leader epoch is that of the last record below it. If two logs of a
partition have a record of the same epoch at the same offset, they are equal up to that record. So a snapshot of a log
that was truncated afterwards is detected: other records at this offset have another epoch. The CRC covers everything
after it.
"""

from asyncio import Future
from collections.abc import Iterable
from functools import partial
from itertools import chain
from struct import Struct
from typing import NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.queues.dedup.key_table import KeyTable
from kbroker.replica.partition import Partition
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader, body_of, iter_headers
from protocol.records.checksum import crc32c
from protocol.records.compression import TooLargeError, decompress

_MAGIC = b"KBS1"
_PREFIX = Struct(">4sI")
_FIELDS = Struct(">16sqi")


class StateSnapshot(NamedTuple):
    topic_id: bytes
    end_offset: int
    leader_epoch: int
    state: Buffer


def encode_state_snapshot(topic_id: bytes, end_offset: int, leader_epoch: int, parts: Iterable[Buffer]) -> bytearray:
    """Encode a state of several parts. Between two of them the event loop may run: it has copied no more than one."""
    data = bytearray(_PREFIX.size)
    crc = 0
    for part in chain((_FIELDS.pack(topic_id, end_offset, leader_epoch),), parts):
        crc = crc32c(part, crc)
        data += part
    _PREFIX.pack_into(data, 0, _MAGIC, crc)
    return data


def decode_state_snapshot(data: Buffer) -> StateSnapshot:
    """Raises ValueError if the file is damaged."""
    if len(data) < _PREFIX.size + _FIELDS.size:
        raise ValueError(f"a snapshot of {len(data)} bytes")
    magic, crc = _PREFIX.unpack_from(data)
    body = memoryview(data)[_PREFIX.size :]
    if magic != _MAGIC or crc32c(body) != crc:
        raise ValueError("the snapshot does not match its CRC")
    topic_id, end_offset, epoch = _FIELDS.unpack_from(body)
    return StateSnapshot(topic_id, end_offset, epoch, body[_FIELDS.size :])


def matches_log(
    snapshot: StateSnapshot, topic_id: bytes, epochs: LeaderEpochCache, log_start_offset: int, log_end_offset: int
) -> bool:
    """Return whether the log certainly has the records that the snapshot covers."""
    return (
        snapshot.topic_id == topic_id
        and snapshot.leader_epoch != NO_EPOCH
        and log_start_offset < snapshot.end_offset <= log_end_offset
        and epochs.epoch_for(snapshot.end_offset - 1) == snapshot.leader_epoch
    )


log = EventLogger("kbroker.queues")

SNAPSHOT_NAME = "idempotency-keys.snapshot"

CHUNK_BYTES = 1 << 20
# A batch of a client has at most 24 MiB of decompressed records, unless max.message.bytes is larger.
MAX_BODY_BYTES = 256 << 20
RETRY_S = 1.0
# A snapshot is written after this many appended bytes, so a load replays little more than these.
SNAPSHOT_BYTES = 64 << 20


class KeyState:
    """Loads the keys of a partition that this broker leads into `table`. `is_ready`: it covers the whole log."""

    def __init__(self, environment: Environment, partition: Partition, table: KeyTable) -> None:
        self._environment = environment
        self._partition = partition
        self._table = table
        self._path = f"{partition.log.directory}/{SNAPSHOT_NAME}"
        self._topic_id = partition.topic_id
        self._waiting: list[Future[None]] = []
        self._bytes_since_snapshot = 0
        self._is_writing = False
        self._has_failed = False
        self.is_ready = False
        self.is_closed = False

    def start(self) -> None:
        """Start to load the state in the background."""
        self._task = self._environment.loop.create_task(self._environment.turns.run(self._run()))

    def close(self) -> None:
        """Drop the state: this broker no longer leads the partition in this epoch."""
        self.is_closed = True
        self.is_ready = False
        self._wake()

    async def wait_until_ready(self) -> None:
        """Wait until the state is loaded. Raises KafkaError(NOT_LEADER_OR_FOLLOWER) if it is dropped before."""
        while not self.is_ready:
            if self.is_closed:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            waiting = self._environment.loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # Loading.

    async def _run(self) -> None:
        offset = None
        while offset is None and not self.is_closed:
            try:
                offset = await self._load_snapshot()
            except KafkaError as error:
                self._log_failure(error)
                await self._environment.sleep(RETRY_S)
        if offset is not None:
            await self._load(offset)

    def _log_failure(self, error: KafkaError) -> None:
        if not self._has_failed and not self.is_closed:
            log.error("the state of a partition cannot be loaded yet", partition=self._partition.tp, reason=error)
        self._has_failed = True

    async def _load(self, offset: int) -> None:
        """Replay the log from `offset` on."""
        while not self.is_closed:
            partition_log = self._partition.log
            offset = max(offset, partition_log.log_start_offset)
            if offset >= partition_log.log_end_offset:
                # Nothing was awaited since the last batch was replayed: the state covers the whole log.
                self.is_ready = True
                self._wake()
                return
            try:
                batches = await self._environment.offload(self._read_blocking, offset)
            except KafkaError as error:
                # Retention may have removed the segment, or the disk failed.
                self._log_failure(error)
                await self._environment.sleep(RETRY_S)
                continue
            for header, body in batches:
                if self.is_closed:
                    return
                if body is not None:
                    await self._replay(header, body)
                offset = header.next_offset

    async def _replay(self, header: BatchHeader, body: bytes) -> None:
        try:
            self._table.replay(header, body, self._environment.clock.now_ms())
        except MalformedError as error:
            log.warning("a batch is skipped", partition=self._partition.tp, offset=header.base_offset, reason=error)
        # The event loop serves other requests between two batches.
        await self._environment.yield_to_loop()

    def _read_blocking(self, offset: int) -> list[tuple[BatchHeader, bytes | None]]:
        """Read some batches from `offset` on, with None for the records of a batch that does not change the state."""
        partition_log = self._partition.log
        data = read_blocking(partition_log, offset, CHUNK_BYTES, partition_log.log_end_offset)
        batches: list[tuple[BatchHeader, bytes | None]] = []
        for position, header in iter_headers(data):
            if header.next_offset <= offset:
                continue
            body: bytes | None = None
            if header.is_control or header.count:
                try:
                    body = bytes(decompress(header.codec, body_of(data, position, header.size), MAX_BODY_BYTES))
                except (MalformedError, TooLargeError) as error:
                    log.warning(
                        "a batch is skipped", partition=self._partition.tp, offset=header.base_offset, reason=error
                    )
            batches.append((header, body))
        if not batches:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log cannot be read at offset {offset}")
        return batches

    async def _load_snapshot(self) -> int:
        """Load the snapshot if it matches the log. Returns the offset from which the log must be replayed."""
        snapshot = await self._environment.offload(self._read_snapshot_blocking)
        partition_log = self._partition.log
        if snapshot is not None:
            if matches_log(
                snapshot, self._topic_id, partition_log.epochs, partition_log.log_start_offset,
                partition_log.log_end_offset,
            ):  # fmt: skip
                try:
                    self._table.load_snapshot(snapshot.state)
                    return snapshot.end_offset
                except ValueError as error:
                    log.warning("a snapshot is ignored", partition=self._partition.tp, reason=error)
            else:
                log.info("a snapshot is of another log", partition=self._partition.tp, offset=snapshot.end_offset)
        # Older keys have expired.
        timestamp = max(self._environment.clock.now_ms() - self._table.window_ms, 0)
        end = partition_log.log_end_offset
        found = await self._environment.offload(find_offset_for_timestamp, partition_log, timestamp, end)
        return end if found is None else found.offset

    def _read_snapshot_blocking(self) -> StateSnapshot | None:
        try:
            return decode_state_snapshot(self._environment.disk.read(self._path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("a snapshot is ignored", partition=self._partition.tp, reason=error)
            return None

    # Snapshots.

    def appended(self, size: int) -> None:
        """Count `size` appended bytes, which the state already covers. Writes a snapshot every SNAPSHOT_BYTES."""
        self._bytes_since_snapshot += size
        if self._bytes_since_snapshot >= SNAPSHOT_BYTES and not self._is_writing:
            self.write_snapshot()

    def write_snapshot(self) -> None:
        """Write a snapshot of the current state, as a task of the log. If that fails, the previous snapshot stays."""
        partition_log = self._partition.log
        end_offset = partition_log.log_end_offset
        epoch = partition_log.epochs.epoch_for(end_offset - 1)
        if not self.is_ready or end_offset <= partition_log.log_start_offset or epoch < 0:
            return
        self._bytes_since_snapshot = 0
        self._is_writing = True
        parts = self._table.to_snapshot()
        disk, path, topic_id = self._environment.disk, self._path, self._topic_id

        def write_blocking() -> str | None:
            data = encode_state_snapshot(topic_id, end_offset, epoch, parts)
            try:
                disk.write_atomic(path, data, sync=False)
            except OSError as error:
                return str(error)
            return None

        partition_log.durability.add_task(write_blocking, partial(self._on_written, partition_log))

    def _on_written(self, _: object, failure: str | None) -> None:
        self._is_writing = False
        if failure is not None:
            log.warning("a snapshot was not written", partition=self._partition.tp, reason=failure)
