"""Truncation of a log, as a follower does it when its log has batches that the leader's has not."""

from collections.abc import Awaitable, Callable, Coroutine
from errno import EIO
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.loaded_log import LoadedLog
from kbroker.storage.log.reading.position_cache import PositionCache
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.task_queue import RETRY_MS
from kbroker.storage.log.writing.log_appends import LogAppends
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.recovery.truncation import Truncation, prepare_truncation_blocking
from kbroker.storage.shortage import is_shortage
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")


class LogOwner(Protocol):
    """What a log needs of its LogManager to be truncated."""

    def create_future(self) -> "Future[Any]": ...

    def spawn(self, coroutine: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine on the event loop; a stop waits for it."""
        ...

    def write_checkpoints(self) -> Awaitable[None]:
        """Write the checkpoint files with the current offsets of all logs, durably. Raises OSError."""
        ...

    def written_high_watermark(self, tp: TopicPartition) -> int:
        """Return the high watermark in the checkpoint file; 0 if it has none."""
        ...


class LogTruncation(LogAppends):
    """A base of Log."""

    __slots__ = ("_owner",)

    _owner: LogOwner

    def set_owner(self, owner: LogOwner) -> None:
        self._owner = owner

    async def store_log_start(self) -> None:
        """Write the log start offset, so that it does not go back after a crash. Raises OSError."""
        await self._owner.write_checkpoints()

    def _start(self, loaded: LoadedLog) -> None:
        """Use the state of a log that was loaded or truncated."""
        self.segments = loaded.segments
        self.contents = object()
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.cleaned_to = loaded.cleaned_to
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self.last_aborted_offset = max([segment.indexes.transaction.last_offset for segment in self.segments])
        self._append_epoch = -1
        self._activate(self.segments[-1])
        self.positions = PositionCache(self.active)

    async def truncate_to(self, offset: int) -> None:
        """Remove all batches that contain or follow `offset`. Appends are rejected meanwhile.

        If `offset` is the log end offset or later, only leader epochs without batches are removed. The caller must pass
        the high watermark to `update_high_watermark` afterwards. A caller that is cancelled does not stop the
        truncation. Raises KafkaError(KAFKA_STORAGE_ERROR); the log is then unchanged or offline.
        """
        await self._run_truncation(lambda: self._truncate_to(offset))

    async def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove all batches, and start the log at `offset` (Kafka: truncateFullyAndStartAt). Raises KafkaError as
        `truncate_to` does."""
        await self._run_truncation(lambda: self._start_at(offset))

    def when_truncated(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as no truncation is in progress."""
        if self.is_truncating:
            self._after_truncation += (callback,)
        else:
            callback()

    async def _run_truncation(self, truncate: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a truncation while nothing else changes the log."""
        while self.is_truncating:
            ended = self._owner.create_future()
            self.when_truncated(lambda ended=ended: ended.done() or ended.set_result(None))  # type: ignore[misc]
            await ended
        self._check_can_truncate()
        self.is_truncating = True
        self._update_limits()
        done = self._owner.create_future()

        async def run() -> None:
            failure: Exception | None = None
            try:
                await self._until_idle()
                self._check_can_truncate()
                await truncate()
            except Exception as error:
                failure = error
            self.is_truncating = False
            self._update_limits()
            waiting, self._after_truncation = self._after_truncation, ()
            if not done.done():
                done.set_result(failure)
            for callback in waiting:
                callback()

        self._owner.spawn(run())
        failure = await done
        if isinstance(failure, OSError):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"truncation failed: {failure}") from failure
        if failure is not None:
            raise failure

    def _check_can_truncate(self) -> None:
        if self._offline is not None or self.is_closing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline or "the log is being closed")

    async def _truncate_to(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            self._append_epoch = -1
            self._write_epochs()
            return
        if offset <= self.segments[0].base_offset:
            await self._start_at(offset)
            return
        truncation = await self._run_in_thread(lambda: prepare_truncation_blocking(self._to_loaded(), offset))
        after = truncation.after
        is_checkpoint_wrong = (
            self.recovery_point > after.recovery_point
            or self.cleaned_to > after.cleaned_to
            or self._owner.written_high_watermark(self.tp) > after.log_end_offset
        )
        self._apply(truncation)
        if is_checkpoint_wrong:
            # Written first: recovery must not trust what is appended after the truncation.
            await self._retry(self._owner.write_checkpoints)
        await self._retry(lambda: self._run_in_thread(truncation.cut_blocking))

    async def _start_at(self, offset: int) -> None:
        after = self._to_loaded()
        after.segments = [LogSegment(self.disk, self.directory, offset, self.active.created_ms)]
        after.log_start_offset = after.log_end_offset = after.recovery_point = after.cleaned_to = offset
        after.producers, after.epochs = ProducerStateManager(), LeaderEpochCache()
        truncation = Truncation(after, self.segments, None, offset)
        self._apply(truncation)
        await self._retry(lambda: self._run_in_thread(truncation.cut_blocking))
        # The next start would put the log start offset back, perhaps above batches that are appended from now on.
        await self._retry(self._owner.write_checkpoints)

    def _apply(self, truncation: Truncation) -> None:
        """Use the state after the truncation. The files are changed afterwards."""
        after = truncation.after
        for segment in truncation.removed:
            segment.retire_truncated()
        if truncation.replaced is not None:
            truncation.replaced.retire_truncated()
            # Records may have been deleted meanwhile.
            after.log_start_offset = min(max(after.log_start_offset, self.log_start_offset), after.log_end_offset)
            after.epochs.truncate_from_start(after.log_start_offset)
            after.producers.keep_completed_transactions(self.producers, truncation.replayed_from)
        self.truncations += 1
        self._start(after)

    async def _retry(self, step: Callable[[], Awaitable[object]]) -> None:
        """Do a step of a truncation that cannot be undone. It is repeated after a shortage; any other error takes the
        log offline, and is raised."""
        while True:
            try:
                await step()
                return
            except OSError as error:
                if not is_shortage(error) or self.is_closing:
                    self.mark_offline(f"truncation failed: {error}")
                    raise
                self.on_shortage("truncation", error)
            except Exception as error:
                self.mark_offline(f"truncation failed: {error}")
                raise
            await self._delay(RETRY_MS)

    def _to_loaded(self) -> LoadedLog:
        """Return the current state, with a copy of the leader epochs."""
        loaded = LoadedLog(self.disk, self.directory, self.tp, self.config)
        loaded.segments = self.segments
        loaded.log_start_offset = self.log_start_offset
        loaded.log_end_offset = self.log_end_offset
        loaded.recovery_point = self.recovery_point
        loaded.cleaned_to = self.cleaned_to
        loaded.epochs = LeaderEpochCache(self.epochs.entries)
        loaded.snapshots = self.snapshots
        loaded.epoch_file = self._epoch_file
        loaded.directory_sync = self._directory_sync
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

        self._tasks.add(attempt, done.set_result)
        results, error = await done
        if not results:
            raise error
        result: T = results[0]
        return result

    async def _until_idle(self) -> None:
        idle = self._owner.create_future()
        self._tasks.when_idle(lambda: idle.set_result(None))
        await idle

    async def _delay(self, delay_ms: int) -> None:
        done = self._owner.create_future()
        self._background(lambda: None, done.set_result, delay_ms)
        await done
