"""Opens, creates, deletes and closes the logs of a data directory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.config import BrokerConfig
from kbroker.config.topic_config import TopicConfig
from kbroker.config.values import ConfigError
from kbroker.replica.logs.checkpoints import NEW_LOG, TAKEN_BACK, CheckpointFiles, LogCheckpoints, StartupState
from kbroker.replica.logs.disk_health import ShortageReporter
from kbroker.replica.logs.stray_logs import FateOf, LogOffsets, LogPosition, StrayLogs
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import yield_if_due
from kbroker.storage import file_names
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_health import is_refused, is_shortage
from kbroker.storage.metadata_files import write_clean_shutdown_file
from kbroker.storage.recovery.open_log import open_log

if TYPE_CHECKING:
    from asyncio import Future, Task, TimerHandle

    from kbroker.runtime.environment import Environment

T = TypeVar("T")


class BackgroundTasks:
    """The BackgroundRunner of storage/log/durability.py."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        # A dict because its order, unlike that of a set, is the same in every simulation of a seed.
        self._tasks: dict[Task[object], None] = {}
        self._delayed: set[TimerHandle] = set()

    def __call__(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0) -> None:
        if delay_ms > 0:

            def start() -> None:
                self._delayed.discard(timer)
                self(job, then)

            timer = self._environment.loop.call_later(delay_ms / 1000, start)
            self._delayed.add(timer)
            return
        self.spawn(self._run(job, then))

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the event loop, as a task that `finish` waits for."""
        task = self._environment.loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        result: Awaitable[T] = self._environment.offload(job)
        then(await result)

    async def finish(self) -> None:
        """Wait for the running tasks. Delayed ones are not started any more: the next start does their work."""
        for timer in self._delayed:
            timer.cancel()
        for task in list(self._tasks):
            await task


event_log = EventLogger("kbroker.logs")

# Logs that a thread opens in one job. Larger jobs might leave threads idle.
LOGS_PER_JOB = 16


class AssignedPartition(NamedTuple):
    """A partition that is assigned to this broker. `configs`: the overrides of its topic."""

    tp: TopicPartition
    topic_id: bytes
    configs: Mapping[str, str]


class LogManager:
    """`config` returns the current configuration of the broker."""

    def __init__(self, environment: Environment, path: str, config: Callable[[], BrokerConfig]) -> None:
        self.shortages = ShortageReporter(environment)
        # One bound method for all logs.
        self.on_shortage = self.shortages.report
        self.path = path
        self._environment = environment
        self._config = config
        self._logs: dict[TopicPartition, Log] = {}
        # The directories of logs that were set aside, until the checkpoint files have their offsets.
        self._taken_back: dict[TopicPartition, str] = {}
        # Logs that are on disk and could not be opened yet, with their topic ids.
        self._unopened: dict[TopicPartition, bytes] = {}
        self._startup = NEW_LOG
        self._high_watermarks: Callable[[], Mapping[TopicPartition, int]] = dict
        self.broker_epoch = 0
        self._checkpoints = CheckpointFiles(environment, path, self._current_checkpoints, self._current_high_watermarks)
        self.write_checkpoints = self._checkpoints.write
        self.write_checkpoints_if_possible = self._checkpoints.write_if_possible
        self._background = BackgroundTasks(environment)
        self._stray_logs = StrayLogs(environment.disk, path, self._unique)
        # What the last result of `topic_config` was made from, and that: all partitions of a topic share it.
        self._last_topic_config: tuple[TopicConfig, Mapping[str, str], TopicConfig] | None = None
        # The messages that `_warn_once` has logged.
        self._warnings: set[tuple[object, ...]] = set()

    def use_high_watermarks(self, high_watermarks: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Checkpoint what this returns: the high watermarks of the open partitions with several replicas."""
        self._high_watermarks = high_watermarks

    def on_registered(self, broker_epoch: int) -> None:
        """Called with the epoch of the broker's registration, which `close` stores for the next start (KIP-966)."""
        self.broker_epoch = broker_epoch

    # Configs.

    def topic_config(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """Return the effective configs of a topic. Ignores invalid ones, which another version may have stored."""
        defaults = self._config().topic_defaults
        last = self._last_topic_config
        if last is not None and last[0] is defaults and last[1] == overrides:
            return last[2]
        try:
            config = TopicConfig.of(overrides, defaults)
        except ConfigError:
            return self._valid_topic_config(topic, overrides, defaults)
        self._last_topic_config = defaults, dict(overrides), config
        return config

    def _valid_topic_config(self, topic: str, overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
        valid: dict[str, str] = {}
        for name, text in overrides.items():
            try:
                TopicConfig.of({name: text}, defaults)
                valid[name] = text
            except ConfigError as error:
                self._warn_once("stored config ignored", topic=topic, config=name, reason=error.message)
        return TopicConfig.of(valid, defaults)

    def _warn_once(self, message: str, **fields: object) -> None:
        key = (message, *map(str, fields.values()))
        if key not in self._warnings:
            self._warnings.add(key)
            event_log.warning(message, **fields)

    # Opening and creating.

    async def open_at_startup(self, assigned: Sequence[AssignedPartition], fate_of: FateOf) -> list[Log]:
        """Open the logs, with recovery after an unclean shutdown. Logs that cannot be opened are omitted.

        Logs that are not assigned are deleted or set aside, as `fate_of` decides (stray_logs.py).
        """
        offload = self._environment.offload
        self._startup = await offload(self._checkpoints.load_blocking)
        self._unopened = {tp: topic_id for tp, topic_id, _ in assigned}
        self._unopened |= await offload(
            self._stray_logs.clean_up, set(self._unopened), fate_of, self._startup.checkpoints.of
        )
        known = set(self._unopened)
        logs = await self._open_all(assigned, self._config().num_recovery_threads_per_data_dir)
        if self._taken_back or self._checkpoints.is_outdated or not self._startup.checkpoints.has_only(known):
            self._checkpoints.is_outdated = True
            await self._checkpoints.write_if_possible()
            logs = await self._without_failed(logs)
        elif not self._startup.checkpoints.is_complete:
            # With these, the next start has the recovery points even if the broker crashes soon.
            self._background.spawn(self._checkpoints.write_if_possible())
        if not self._unopened:
            # With many partitions what was read is large, and it is needed only for logs that are opened later.
            self._unopened = {}
            self._startup = self._startup._replace(checkpoints=NEW_LOG.checkpoints)
        return logs

    async def open_or_create(self, assigned: Sequence[AssignedPartition]) -> list[Log]:
        """Create the logs of new partitions, or open logs that could not be opened before. Omits those that fail."""
        for tp, topic_id, _ in assigned:
            if self._unopened.get(tp, topic_id) != topic_id:
                # The topic was deleted, and this is a new one with the same name.
                del self._unopened[tp]
                self._checkpoints.is_outdated = True
        if self._checkpoints.is_outdated:
            await self._checkpoints.write_if_possible()
        if self._checkpoints.is_outdated:
            return []
        logs = await self._open_all(assigned, len(assigned))
        if self._taken_back:
            await self._checkpoints.write_if_possible()
        return await self._without_failed(logs)

    async def _without_failed(self, logs: list[Log]) -> list[Log]:
        """Return the logs without those whose offsets from the time when they were set aside could not be replaced.

        Nothing is appended or truncated before the checkpoint files have the offsets: those of the log's own file would
        be taken after a crash. Called when the checkpoint files were written, if possible.
        """
        taken_back, self._taken_back = self._taken_back, {}
        if not taken_back:
            return logs
        failed: set[TopicPartition] = set(taken_back)
        if not self._checkpoints.is_failing:
            failed = await self._environment.offload(self._forget_offsets_blocking, taken_back)
        for log in [log for log in logs if log.tp in failed]:
            del self._logs[log.tp]
            self._unopened[log.tp] = log.topic_id
            await self._close(log, clean=False)
        return [log for log in logs if log.tp not in failed]

    def _forget_offsets_blocking(self, taken_back: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        failed = set()
        for tp, directory in taken_back.items():
            try:
                self._stray_logs.forget_offsets(directory)
            except OSError as error:
                self._warn_once("log cannot be opened", partition=tp, reason=error)
                failed.add(tp)
        return failed

    async def _open_all(self, assigned: Sequence[AssignedPartition], max_jobs: int) -> list[Log]:
        groups = [assigned[first : first + LOGS_PER_JOB] for first in range(0, len(assigned), LOGS_PER_JOB)]
        results: dict[int, list[Log | None]] = {}
        queue = iter(enumerate(groups))

        async def run_worker() -> None:
            for number, group in queue:
                states = [self._startup if partition.tp in self._unopened else NEW_LOG for partition in group]
                results[number] = await self._environment.offload(self._open_group_blocking, group, states)

        workers = [self._environment.loop.create_task(run_worker()) for _ in range(min(max_jobs, len(groups)))]
        for worker in workers:
            await worker
        logs = [log for number in range(len(groups)) for log in results[number] if log is not None]
        for log in logs:
            self._logs[log.tp] = log
            self._unopened.pop(log.tp, None)
            for line in log.repairs:
                event_log.warning("log repaired", partition=log.tp, repair=line)
        return logs

    def _open_group_blocking(
        self, group: Sequence[AssignedPartition], states: Sequence[StartupState]
    ) -> list[Log | None]:
        return list(map(self._try_open_blocking, group, states))

    def _try_open_blocking(self, partition: AssignedPartition, state: StartupState) -> Log | None:
        tp = partition.tp
        directory = file_names.partition_dir(self.path, tp)
        try:
            if self._stray_logs.take_back(directory, tp, partition.topic_id):
                self._checkpoints.is_outdated = True
                state = NEW_LOG
            offsets = self._stray_logs.offsets(directory)
            if offsets is None:
                return self._open_blocking(partition, state, state.checkpoints.of(tp))
            log = self._open_blocking(partition, TAKEN_BACK, offsets)
            self._taken_back[tp] = directory
            return log
        except (OSError, KafkaError) as error:
            self._warn_once("log cannot be opened", partition=tp, reason=error)
            if isinstance(error, OSError) and (is_shortage(error) or is_refused(error)):
                self.shortages.report_unopened(error)
        except Exception as error:
            event_log.failure("log cannot be opened", error, partition=tp)
        return None

    def _open_blocking(self, partition: AssignedPartition, state: StartupState, offsets: LogOffsets) -> Log:
        tp, topic_id, configs = partition
        checkpoints = state.checkpoints
        return open_log(
            self._environment.disk,
            file_names.partition_dir(self.path, tp),
            tp,
            topic_id,
            self.topic_config(tp.topic, configs),
            offsets.recovery_point,
            state.is_clean,
            self._environment.clock.now_ms(),
            log_start_offset=offsets.log_start_offset if checkpoints.has_log_starts else None,
            cleaned_to=offsets.cleaned_to,
            checkpointed=checkpoints.is_complete,
            high_watermark=offsets.high_watermark,
            transaction_indexes=None if (known := checkpoints.transaction_indexes) is None else known.get(tp, {}),
            background=self._background,
            random=self._environment.random,
            owner=self,
        )

    # The LogOwner of all logs.

    def create_future(self) -> Future[Any]:
        return self._environment.loop.create_future()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of a log; `close` waits for it."""
        self._background.spawn(coroutine)

    def written_high_watermark(self, tp: TopicPartition) -> int:
        """Return the high watermark in the checkpoint file; 0 if it has none."""
        return self._checkpoints.high_watermarks.get(tp, 0)

    # Deletion.

    async def set_aside(self, logs: Sequence[Log]) -> None:
        """Close logs, and rename their directories: they are opened again when they are assigned again."""
        if not logs:
            return
        for log in logs:
            if self._logs.get(log.tp) is log:
                del self._logs[log.tp]
                self._checkpoints.is_outdated = True
        for closed in [self._close(log, clean=True) for log in logs]:
            await closed
        await self._environment.offload(self._set_aside_blocking, logs)
        await self._checkpoints.write_if_possible()

    def _set_aside_blocking(self, logs: Sequence[Log]) -> None:
        for log in logs:
            high_watermark = self._checkpoints.high_watermarks.get(log.tp)
            offsets = LogOffsets(log.durable_recovery_point, log.log_start_offset, log.cleaned_to, high_watermark)
            try:
                self._stray_logs.set_aside(log.directory, log.tp, log.topic_id, offsets)
            except OSError as error:
                # The next start repeats it.
                event_log.warning("log not set aside", partition=log.tp, reason=error)

    async def stray_position(self, topic_id: bytes, index: int) -> LogPosition | None:
        """Return how far the log of a partition goes that is set aside; None if there is none. Raises OSError."""
        return await self._environment.offload(self._stray_logs.position, topic_id, index)

    @property
    def stray_logs(self) -> int:
        """The number of logs that are set aside."""
        return self._stray_logs.count

    async def delete(self, logs: Sequence[Log]) -> None:
        """Rename the logs' directories now; remove them after file.delete.delay.ms."""
        renames = []
        for log in logs:
            if self._logs.get(log.tp) is log:
                del self._logs[log.tp]
                self._checkpoints.is_outdated = True
            await self._close(log, clean=False)
            renames.append((log.directory, file_names.deleted_dir(self.path, log.tp, self._unique())))
            yield_if_due()
        if not logs:
            return
        disk = self._environment.disk
        await self._environment.offload(_try_each_blocking, disk.rename, renames)
        try:
            await self.write_checkpoints()
        except OSError as error:
            event_log.warning("checkpoints still name deleted logs", reason=error)
        removals: dict[int, list[tuple[str]]] = {}
        for log, (_, path) in zip(logs, renames, strict=True):
            removals.setdefault(log.config.file_delete_delay_ms, []).append((path,))
        for delay_ms, paths in removals.items():
            self._background(partial(_try_each_blocking, disk.rmtree, paths), lambda _: None, delay_ms)

    def _unique(self) -> str:
        return f"{self._environment.random.getrandbits(128):032x}"

    # Checkpoints and shutdown.

    def _current_checkpoints(self) -> LogCheckpoints:
        return self._startup.checkpoints.updated(list(self._logs.values()), self._unopened, self._high_watermarks())

    def _current_high_watermarks(self) -> Mapping[TopicPartition, int]:
        """Return the high watermarks of the open logs, and for the others those found at startup."""
        current = self._high_watermarks()
        former = self._startup.checkpoints.high_watermarks
        unopened = {tp: former[tp] for tp in self._unopened if tp in former}
        return {**unopened, **current} if unopened else current

    @property
    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last process if its shutdown was clean, else -1. Known once the logs are open."""
        return self._startup.broker_epoch

    async def write_high_watermarks(self) -> None:
        """Write the high watermarks if they have changed."""
        try:
            await self._checkpoints.write_high_watermarks()
        except OSError as error:
            self._warn_once("high watermarks could not be written, will be retried", reason=error)

    async def close(self, logs: Sequence[Log]) -> None:
        """Sync and close all logs. If everything succeeds, write the marker of a clean shutdown."""
        closed = [self._close(log, clean=True) for log in logs]
        results = [await future for future in closed]
        await self._background.finish()
        try:
            await self.write_checkpoints()
        except OSError as error:
            event_log.warning("checkpoints could not be written", reason=error)
            results.append(False)
        if all(results) and (self._startup.is_clean or not self._unopened):
            await self._environment.offload(
                write_clean_shutdown_file, self._environment.disk, self.path, self.broker_epoch
            )
        else:
            event_log.warning("not every log was closed cleanly, the next start checks them")

    def _close(self, log: Log, clean: bool) -> Future[bool]:
        closed: Future[bool] = self._environment.loop.create_future()

        def on_closed(ok: bool) -> None:
            if not closed.done():
                closed.set_result(ok)

        log.durability.close(clean, on_closed)
        return closed


def _try_each_blocking(action: Callable[..., None], calls: Sequence[tuple[str, ...]]) -> None:
    """Call the action with the arguments of each call. The next start repeats the calls that fail."""
    for paths in calls:
        try:
            action(*paths)
        except OSError as error:
            to = paths[1] if len(paths) > 1 else None
            event_log.warning("file operation failed", path=paths[0], to=to, reason=error)
