"""The checkpoint files of a data directory: recovery points, log start offsets, cleaner offsets, high watermarks."""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.replica.logs.stray_logs import LogOffsets
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.checkpoint_files import IndexEntries, decode_index_entries, encode_index_entries
from kbroker.storage.metadata_files import (
    NO_BROKER_EPOCH,
    consume_clean_shutdown_file,
    has_written_transaction_indexes,
    read_clean_broker_epoch,
)

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

event_log = EventLogger("kbroker.logs")


# In the order of the fields of LogCheckpoints.
_FILES = (
    file_names.RECOVERY_POINTS,
    file_names.LOG_START_OFFSETS,
    file_names.CLEANER_OFFSETS,
    file_names.HIGH_WATERMARKS,
)


class LogCheckpoints(NamedTuple):
    """Offsets by partition. `is_complete`: False if the recovery points of the last process were lost.

    Only partitions with several replicas have high watermarks here. With a single one, the whole log is committed.
    `transaction_indexes`: how many entries the transaction indexes of each log have; None if the file was lost.
    `has_log_starts`: False if the log start offsets of the last process were lost.
    """

    recovery_points: Mapping[TopicPartition, int]
    log_start_offsets: Mapping[TopicPartition, int]
    cleaner_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    is_complete: bool = True
    transaction_indexes: Mapping[TopicPartition, IndexEntries] | None = MappingProxyType({})
    has_log_starts: bool = True

    def of(self, tp: TopicPartition) -> LogOffsets:
        return LogOffsets(
            self.recovery_points.get(tp, 0),
            self.log_start_offsets.get(tp, 0),
            self.cleaner_offsets.get(tp, 0),
            self.high_watermarks.get(tp),
        )

    def has_only(self, partitions: Container[TopicPartition]) -> bool:
        """Return whether there are offsets of these partitions only."""
        by_file = (self.recovery_points, self.log_start_offsets, self.cleaner_offsets, self.high_watermarks)
        return all(tp in partitions for offsets in by_file for tp in offsets)

    def updated(
        self,
        logs: Iterable[Log],
        unopened: Iterable[TopicPartition],
        current_high_watermarks: Mapping[TopicPartition, int],
    ) -> LogCheckpoints:
        """Return the current offsets of the open logs; for logs that could not be opened, those of this object."""
        recovery_points, log_start_offsets, cleaner_offsets, high_watermarks = (
            {tp: offsets[tp] for tp in unopened if tp in offsets}
            for offsets in (self.recovery_points, self.log_start_offsets, self.cleaner_offsets, self.high_watermarks)
        )
        high_watermarks.update(current_high_watermarks)
        former = self.transaction_indexes or {}
        transaction_indexes = {tp: former[tp] for tp in unopened if tp in former}
        for log in paced(logs):
            recovery_points[log.tp] = log.durable_recovery_point
            if log.log_start_offset > 0:
                log_start_offsets[log.tp] = log.log_start_offset
            if log.cleaned_to > 0:
                cleaner_offsets[log.tp] = log.cleaned_to
            if log.last_aborted_offset >= 0:
                transaction_indexes[log.tp] = log.transaction_index_entries()
        return LogCheckpoints(
            recovery_points,
            log_start_offsets,
            cleaner_offsets,
            high_watermarks,
            transaction_indexes=transaction_indexes,
        )


class StartupState(NamedTuple):
    """The state found on disk at startup. `is_clean`: the last process stopped cleanly. `broker_epoch`: its epoch in
    that case, else -1."""

    is_clean: bool
    checkpoints: LogCheckpoints
    broker_epoch: int = NO_BROKER_EPOCH


# For logs that were created after the startup. What is in the directory of one is left from a replica that was removed,
# if renaming it failed: the log was closed without a sync, perhaps because the disk failed.
NEW_LOG = StartupState(False, LogCheckpoints({}, {}, {}, {}, is_complete=False))
# For logs that were set aside: their own files have their offsets, but not the numbers of index entries.
TAKEN_BACK = StartupState(False, LogCheckpoints({}, {}, {}, {}, transaction_indexes=None))


class CheckpointFiles:
    """Reads and writes the files. `current` is called when a write starts, and returns the checkpoints to write.

    `current_high_watermarks` returns only their high watermarks, which are checked every five seconds.
    `is_outdated`: the files contain offsets of removed logs. They must be written before logs of the same names are
    created, because the new records would lie below the log start offsets of the removed logs. `high_watermarks`: those
    in the file.
    """

    def __init__(
        self,
        environment: Environment,
        path: str,
        current: Callable[[], LogCheckpoints],
        current_high_watermarks: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        self.is_outdated = False
        self._environment = environment
        self._path = path
        self._current = current
        self._current_high_watermarks = current_high_watermarks
        # Whether the last write failed, and the failure was logged.
        self.is_failing = False
        # The content of transaction-index-checkpoint that was written last.
        self._transaction_indexes = b""
        self._waiting: list[Future[None]] = []
        self._writing: Task[None] | None = None
        self.high_watermarks: Mapping[TopicPartition, int] = {}
        # Held during a write: two would share temporary files.
        self._mutex = Lock()

    def load_blocking(self) -> StartupState:
        """Read the files, and remove the marker of a clean shutdown."""
        disk = self._environment.disk
        broker_epoch = read_clean_broker_epoch(disk, self._path)
        may_lack_indexes = disk.exists(f"{self._path}/{file_names.CLEAN_SHUTDOWN}") and (
            not has_written_transaction_indexes(disk, self._path)
        )
        is_clean = consume_clean_shutdown_file(disk, self._path)
        by_file: list[dict[TopicPartition, int]] = []
        # The file exists from the first start on.
        is_complete = disk.exists(f"{self._path}/{file_names.RECOVERY_POINTS}")
        has_log_starts = disk.exists(f"{self._path}/{file_names.LOG_START_OFFSETS}")
        for name in _FILES:
            try:
                by_file.append(checkpoint_files.read_offsets(disk, self._path, name))
            except (ValueError, IndexError) as error:
                by_file.append({})
                has_log_starts = has_log_starts and name != file_names.LOG_START_OFFSETS
                if name == file_names.HIGH_WATERMARKS:
                    event_log.warning("checkpoint damaged, high watermarks are unknown", file=name, reason=error)
                else:
                    event_log.warning("checkpoint damaged, logs are read from their start", file=name, reason=error)
                    is_clean = is_complete = False
        self.high_watermarks = by_file[-1]
        recovery_points, log_starts, cleaner_offsets, high_watermarks = by_file
        checkpoints = LogCheckpoints(
            recovery_points,
            log_starts,
            cleaner_offsets,
            high_watermarks,
            is_complete,
            self._load_transaction_indexes_blocking(may_lack_indexes),
            has_log_starts,
        )
        return StartupState(is_clean, checkpoints, broker_epoch if is_clean else NO_BROKER_EPOCH)

    def _load_transaction_indexes_blocking(self, may_be_missing: bool) -> Mapping[TopicPartition, IndexEntries] | None:
        """Return None if the file was lost. `may_be_missing`: a former version, which does not write it, has stopped
        cleanly. What is in the transaction indexes is then trusted."""
        name = file_names.TRANSACTION_INDEXES
        try:
            return decode_index_entries(self._environment.disk.read(f"{self._path}/{name}"))
        except FileNotFoundError:
            return {} if may_be_missing else None
        except (ValueError, IndexError) as error:
            event_log.warning("checkpoint damaged, transaction indexes are checked", file=name, reason=error)
            return None

    async def write(self) -> None:
        """Write the checkpoints of all logs, durably. Raises OSError.

        One write runs at a time: two would share a temporary file, and the older could replace the newer. All calls
        made during a write are served by the next write.
        """
        loop = self._environment.loop
        written = loop.create_future()
        self._waiting.append(written)
        if self._writing is None:
            self._writing = loop.create_task(self._environment.turns.run(self._write()))
        await written

    async def write_if_possible(self) -> bool:
        """Like `write`, but log an OSError and return False instead of raising it. `is_outdated` stays in that case."""
        try:
            await self.write()
        except OSError as error:
            if not self.is_failing:
                event_log.warning("checkpoints could not be written, will be retried", reason=error)
            self.is_failing = True
            return False
        if self.is_failing:
            event_log.info("checkpoints are written again")
        self.is_failing = False
        return True

    async def _write(self) -> None:
        while self._waiting:
            served, self._waiting = self._waiting, []
            was_outdated, self.is_outdated = self.is_outdated, False
            failure: Exception | None = None
            try:
                async with self._mutex:
                    # A change between two turns is in the next write, as one during this write is.
                    current = self._current()
                    await self._environment.offload(self._write_blocking, current)
                    self.high_watermarks = current.high_watermarks
            except Exception as error:
                failure = error
                self.is_outdated |= was_outdated
            for written in served:
                if written.done():
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)
        self._writing = None

    async def write_high_watermarks(self) -> None:
        """Write the high watermarks if they have changed. Raises OSError.

        They are not synced: an older high watermark is only less useful.
        """
        async with self._mutex:
            offsets = self._current_high_watermarks()
            if offsets != self.high_watermarks:
                await self._environment.offload(self._write_high_watermarks_blocking, offsets, False)
                self.high_watermarks = offsets

    def _write_high_watermarks_blocking(self, offsets: Mapping[TopicPartition, int], sync: bool) -> None:
        disk = self._environment.disk
        if offsets or disk.exists(f"{self._path}/{file_names.HIGH_WATERMARKS}"):
            checkpoint_files.write_offsets(disk, self._path, file_names.HIGH_WATERMARKS, offsets, sync=sync)

    def _write_blocking(self, checkpoints: LogCheckpoints) -> None:
        disk = self._environment.disk
        # Before the recovery points: what is below them is not read again, so its indexes must be known.
        data = encode_index_entries(checkpoints.transaction_indexes or {})
        if data != self._transaction_indexes:
            disk.write_atomic(f"{self._path}/{file_names.TRANSACTION_INDEXES}", data)
            self._transaction_indexes = data
        checkpoint_files.write_offsets(disk, self._path, file_names.RECOVERY_POINTS, checkpoints.recovery_points)
        checkpoint_files.write_offsets(disk, self._path, file_names.LOG_START_OFFSETS, checkpoints.log_start_offsets)
        if checkpoints.cleaner_offsets or disk.exists(f"{self._path}/{file_names.CLEANER_OFFSETS}"):
            checkpoint_files.write_offsets(disk, self._path, file_names.CLEANER_OFFSETS, checkpoints.cleaner_offsets)
        self._write_high_watermarks_blocking(checkpoints.high_watermarks, True)
