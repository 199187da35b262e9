"""Truncates a log: a follower removes the end of its log that the leader does not have, or starts at another offset.

A truncation is prepared in a thread, which only reads. The log then uses the state that was prepared, and
`Truncation.cut_blocking` changes the files. A crash before or during the cut leaves the batches up to the offset, and
perhaps some after them.
"""

from collections.abc import Awaitable, Callable, Coroutine
from errno import EIO
from itertools import islice
from typing import Any, TypeVar

from kbroker.common import KafkaError
from kbroker.storage import file_names
from kbroker.storage.log.durability import RETRY_MS
from kbroker.storage.log.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_health import is_shortage
from kbroker.storage.log.log_state import LogOwner, LogState
from kbroker.storage.log.offset_lookup import search_segment
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.transaction_index import (
    TransactionIndex,
    decode_entries,
    encode_entries,
    iter_transaction_index,
)
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.recovery.segment_loading import load_prefix
from kbroker.storage.recovery.state_rebuilder import StateRebuilder
from protocol.errors import ErrorCode

T = TypeVar("T")


class Truncation:
    """What a log is after a truncation, and the removal of the rest from its files.

    `after`: the state of the log. `removed`: the segments that are deleted. `replaced`: the segment whose file is
    truncated, and whose successor is the last one of `after`; None if that one is new. `replayed_from`: the producer
    state was rebuilt from a snapshot at this offset.
    """

    def __init__(
        self, after: LogState, removed: list[LogSegment], replaced: LogSegment | None, replayed_from: int
    ) -> None:
        self.after = after
        self.removed = removed
        self.replaced = replaced
        self.replayed_from = replayed_from

    def cut_blocking(self) -> None:
        """Delete and truncate files. Raises OSError; it may then be called again."""
        after = self.after
        if self.replaced is not None:
            # Recovery finds the epochs of batches that a crash leaves, since these are above the recovery point, but it
            # would not miss the batches of epochs in the file.
            after.epoch_file.write_blocking(after.epochs.entries)
        last = after.segments[-1]
        # From the end on, so that a crash leaves no gap.
        for segment in reversed(self.removed):
            segment.delete_blocking()
        after.snapshots.remove([segment.base_offset for segment in self.removed])
        after.snapshots.remove_after_blocking(after.log_end_offset if self.replaced is not None else -1)
        # A power loss must not bring these files back when other batches have the offsets: segments would follow them,
        # and a snapshot would pass for their producer state.
        after.disk.sync_dir(after.directory)
        if self.replaced is None:
            last.create_file()
            after.directory_sync.mark_changed()
            after.epoch_file.write_blocking(after.epochs.entries)
            return
        _truncate_indexes(last)
        last.truncate_file_blocking()


async def truncate_to(log: Log, offset: int) -> None:
    """Remove all batches that contain or follow `offset`. Appends are rejected meanwhile.

    If `offset` is the log end offset or later, only leader epochs without batches are removed. The caller must pass the
    high watermark to `update_high_watermark` afterwards. A caller that is cancelled does not stop the truncation.
    Raises KafkaError(KAFKA_STORAGE_ERROR); the log is then unchanged or offline.
    """
    truncator = LogTruncator(log)
    await truncator.run(lambda: truncator.truncate_to(offset))


async def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Remove all batches, and start the log at `offset`. Raises KafkaError as `truncate_to` does."""
    truncator = LogTruncator(log)
    await truncator.run(lambda: truncator.start_at(offset))


class LogTruncator:
    """A truncation of one log, while nothing else changes it."""

    def __init__(self, log: Log) -> None:
        assert log.owner is not None
        self._log = log
        self._owner: LogOwner = log.owner

    async def run(self, truncate: Callable[[], Coroutine[Any, Any, None]]) -> None:
        log = self._log
        while log.is_truncating:
            ended = self._owner.create_future()
            log.when_truncated(lambda ended=ended: ended.done() or ended.set_result(None))  # type: ignore[misc]
            await ended
        self._check_can_truncate()
        log.begin_truncation()
        done = self._owner.create_future()

        async def run() -> None:
            failure: Exception | None = None
            try:
                await self._until_idle()
                self._check_can_truncate()
                await truncate()
            except Exception as error:
                failure = error
            if not done.done():
                done.set_result(failure)
            log.end_truncation()

        self._owner.spawn(run())
        failure = await done
        if isinstance(failure, OSError):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"truncation failed: {failure}") from failure
        if failure is not None:
            raise failure

    def _check_can_truncate(self) -> None:
        offline = self._log.health.offline
        if offline is not None or self._log.durability.is_closing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, offline or "the log is being closed")

    async def truncate_to(self, offset: int) -> None:
        log = self._log
        if offset >= log.log_end_offset:
            log.remove_epochs_without_batches()
            return
        if offset <= log.segments[0].base_offset:
            await self.start_at(offset)
            return
        truncation = await self._run_in_thread(lambda: prepare_truncation_blocking(self._to_loaded(), offset))
        after = truncation.after
        is_checkpoint_wrong = (
            log.recovery_point > after.recovery_point
            or log.cleaned_to > after.cleaned_to
            or self._owner.written_high_watermark(log.tp) > after.log_end_offset
        )
        self._apply(truncation)
        if is_checkpoint_wrong:
            # Written first: recovery must not trust what is appended after the truncation.
            await self._retry(self._owner.write_checkpoints)
        await self._retry(lambda: self._run_in_thread(truncation.cut_blocking))

    async def start_at(self, offset: int) -> None:
        log, after = self._log, self._to_loaded()
        after.segments = [LogSegment(log.disk, log.directory, offset, log.active.created_ms)]
        after.log_start_offset = after.log_end_offset = after.recovery_point = after.cleaned_to = offset
        after.producers, after.epochs = ProducerStateManager(), LeaderEpochCache()
        truncation = Truncation(after, log.segments, None, offset)
        self._apply(truncation)
        await self._retry(lambda: self._run_in_thread(truncation.cut_blocking))
        # The next start would put the log start offset back, perhaps above batches that are appended from now on.
        await self._retry(self._owner.write_checkpoints)

    def _apply(self, truncation: Truncation) -> None:
        """Use the state after the truncation. The files are changed afterwards."""
        log, after = self._log, truncation.after
        for segment in truncation.removed:
            segment.retire_truncated()
        if truncation.replaced is not None:
            truncation.replaced.retire_truncated()
            # Records may have been deleted meanwhile.
            after.log_start_offset = min(max(after.log_start_offset, log.log_start_offset), after.log_end_offset)
            after.epochs.truncate_from_start(after.log_start_offset)
            after.producers.keep_completed_transactions(log.producers, truncation.replayed_from)
        log.use_truncated(after)

    async def _retry(self, step: Callable[[], Awaitable[object]]) -> None:
        """Do a step of a truncation that cannot be undone. It is repeated after a shortage; any other error takes the
        log offline, and is raised."""
        while True:
            try:
                await step()
                return
            except OSError as error:
                if not is_shortage(error) or self._log.durability.is_closing:
                    self._log.health.mark_offline(f"truncation failed: {error}")
                    raise
                self._log.health.on_shortage("truncation", error)
            except Exception as error:
                self._log.health.mark_offline(f"truncation failed: {error}")
                raise
            await self._delay(RETRY_MS)

    def _to_loaded(self) -> LogState:
        """Return the current state, with a copy of the leader epochs."""
        log = self._log
        loaded = LogState(log.disk, log.directory, log.tp, log.config)
        loaded.use(log)
        loaded.epochs, loaded.repairs = LeaderEpochCache(log.epochs.entries), []
        return loaded

    async def _run_in_thread(self, job: Callable[[], T]) -> T:
        """Run a job as a task of the log. Raises its exceptions."""
        done = self._owner.create_future()

        def attempt() -> tuple[list[T], Exception]:
            try:
                return [job()], OSError()
            except MemoryError as error:
                return [], OSError(EIO, str(error))
            except Exception as error:
                return [], error

        self._log.durability.add_task(attempt, done.set_result)
        results, error = await done
        if not results:
            raise error
        result: T = results[0]
        return result

    async def _until_idle(self) -> None:
        idle = self._owner.create_future()
        self._log.durability.when_idle(lambda: idle.set_result(None))
        await idle

    async def _delay(self, delay_ms: int) -> None:
        done = self._owner.create_future()
        self._log.durability.background(lambda: None, done.set_result, delay_ms)
        await done


def prepare_truncation_blocking(loaded: LogState, offset: int) -> Truncation:
    """Return the truncation of a log to the batches that end before `offset`.

    `loaded` has the state of the log, which must not change meanwhile; it becomes the state after the truncation.
    Raises OSError, KafkaError(CORRUPT_MESSAGE).
    """
    segments = loaded.segments
    count = max(sum(1 for segment in segments if segment.base_offset < offset), 1)
    old = segments[count - 1]
    position = search_segment(loaded, old, offset, True)
    last = LogSegment(loaded.disk, loaded.directory, old.base_offset, old.created_ms)
    log_end_offset = load_prefix(last, position, offset, loaded.config.index_interval_bytes)
    last.indexes.use_transaction_index(_truncated_transaction_index(old, log_end_offset))
    last.mark_truncated()
    loaded.segments = [*segments[: count - 1], last]
    loaded.log_end_offset = log_end_offset
    loaded.log_start_offset = min(loaded.log_start_offset, log_end_offset)
    loaded.recovery_point = min(loaded.recovery_point, log_end_offset)
    loaded.cleaned_to = min(loaded.cleaned_to, last.base_offset)
    loaded.epochs.truncate_from_end(log_end_offset)
    state = StateRebuilder(loaded, indexes_are_complete=True)
    state.last_epoch = loaded.epochs.latest
    state.load_producers(log_end_offset)
    replayed_from = state.replayed_to
    state.replay(log_end_offset)
    return Truncation(loaded, segments[count:], old, replayed_from)


def _truncated_transaction_index(segment: LogSegment, offset: int) -> TransactionIndex:
    """Return the transaction index of `segment` without the transactions whose marker is at `offset` or later."""
    index = segment.indexes.transaction
    if index.last_offset < offset:
        return index
    kept = []
    if index.persisted:
        try:
            entries = iter_transaction_index(segment.disk, segment.path(file_names.TXN_INDEX))
            kept = [entry for entry in islice(entries, index.persisted) if entry.last_offset < offset]
        except ValueError as error:
            raise OSError(EIO, f"{segment.path(file_names.TXN_INDEX)}: {error}") from error
    truncated = TransactionIndex(len(kept), kept[-1].last_offset if kept else -1)
    for entry in decode_entries(index.encode_unwritten()):
        if entry.last_offset < offset:
            truncated.add(entry)
    return truncated


def _truncate_indexes(segment: LogSegment) -> None:
    """Remove the entries that `segment` no longer has from its index files, durably.

    Otherwise they would be trusted again once the recovery point has passed them.
    """
    indexes, disk = segment.indexes, segment.disk
    assert indexes.offset is not None
    assert indexes.time is not None
    sizes = {
        file_names.INDEX: indexes.offset.persisted * OFFSET_ENTRY_BYTES,
        file_names.TIME_INDEX: indexes.time.persisted * TIME_ENTRY_BYTES,
    }
    for suffix, size in sizes.items():
        path = segment.path(suffix)
        if disk.exists(path) and disk.size(path) > size:
            file = disk.open(path)
            file.truncate(size)
            file.fdatasync()
            file.close()
    path, persisted = segment.path(file_names.TXN_INDEX), indexes.transaction.persisted
    if disk.exists(path):
        entries = list(iter_transaction_index(disk, path))
        if len(entries) > persisted:
            disk.write_atomic(path, encode_entries(entries[:persisted]))
