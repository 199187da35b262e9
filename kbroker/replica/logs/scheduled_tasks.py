"""The periodic tasks of the logs: flush, resume appends, write checkpoints, delete segments, close files, open logs.

Compaction is in log_cleaner.py.

A task is scheduled only while it has something to do. Over many logs it yields to other callbacks of the event loop,
so thousands of idle partitions add no latency.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import takewhile

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.replica.assigned_partitions import AssignedPartitions
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.runtime.turns import paced

event_log = EventLogger("kbroker.logs")

FLUSH_INTERVAL_MS = 1_000
# How often a full disk is probed.
RESUME_INTERVAL_MS = 1_000
# A log that had no appends for this long is synced, so recovery need not read it.
IDLE_FLUSH_MS = 10_000
OPEN_INTERVAL_MS = 10_000
# The delay after an operation lacked a file descriptor.
CLOSE_FILES_MS = 100


class ScheduledTasks:
    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        assigned: AssignedPartitions,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._replicas = replicas
        maintenance = self._maintenance = replicas.maintenance
        self._config = config
        self._stopped = False

        def checkpoint_ms() -> int:
            return config().log_flush_offset_checkpoint_interval_ms

        def retention_ms() -> int:
            return config().log_retention_check_interval_ms

        def high_watermarks_ms() -> int:
            return config().replica_high_watermark_checkpoint_interval_ms

        task = partial(PeriodicTask, environment)
        self._tasks = [
            task("flush", lambda: FLUSH_INTERVAL_MS, self.flush, lambda: maintenance.unflushed),
            task("resume appends", lambda: RESUME_INTERVAL_MS, self.resume_appends, lambda: maintenance.full),
            task("checkpoint", checkpoint_ms, self.checkpoint, lambda: maintenance.uncheckpointed),
            task(
                "high watermarks",
                high_watermarks_ms,
                replicas.logs.write_high_watermarks,
                lambda: maintenance.replicated,
            ),
            task("retention", retention_ms, self.enforce_retention),
            task("close files", lambda: CLOSE_FILES_MS, self.close_files, lambda: maintenance.out_of_descriptors),
            task("open logs", lambda: OPEN_INTERVAL_MS, assigned.open_unopened, lambda: maintenance.unopened),
        ]

    def start(self) -> None:
        self._maintenance.add_listener(self._schedule)
        self._schedule()

    def _schedule(self) -> None:
        for task in self._tasks:
            task.schedule()

    def _iterate(self, partitions: Iterable[Partition]) -> Iterator[Partition]:
        return takewhile(lambda _: not self._stopped, paced(partitions))

    async def stop(self) -> None:
        self._stopped = True
        for task in self._tasks:
            await task.stop()

    async def flush(self) -> None:
        """Sync idle logs and those whose flush.ms has passed."""
        now_ms = self._environment.clock.now_ms()
        unflushed = self._maintenance.unflushed
        for partition in self._iterate(list(unflushed)):
            first_ms, last_ms = unflushed.get(partition, (now_ms, now_ms))
            log = partition.log
            if partition.is_closed or log.health.offline is not None or log.recovery_point >= log.log_end_offset:
                unflushed.pop(partition, None)
            elif log.health.read_only:
                # A sync would fail, and a failed sync is never retried. Wait until the file system is writable.
                continue
            elif now_ms - first_ms >= log.config.flush_ms or now_ms - last_ms >= IDLE_FLUSH_MS:
                # After an error the log has logged why it is offline.
                with suppress(KafkaError):
                    await self._maintenance.flusher.flush(partition)

    async def resume_appends(self) -> None:
        """Resume appends if the disk has space again. It waits for no sync, which may take long on a busy disk."""
        for partition in [] if self._maintenance.appends_suspended else list(self._maintenance.full):
            await self._try_resume(partition)

    async def _try_resume(self, partition: Partition) -> None:
        """Accept appends again if the disk can be written to. (Kafka stops when the disk is full.)"""
        log = partition.log
        if not log.health.full or partition.is_closed or log.health.offline is not None:
            self._maintenance.full.pop(partition, None)
        elif await self._environment.offload(log.durability.probe_blocking) and not partition.is_closed:
            cause = "the file system is writable again" if log.health.read_only else "there is space again"
            if log.resume():
                self._maintenance.full.pop(partition, None)
                event_log.info(f"{cause}, appends resume", partition=partition.tp)

    async def checkpoint(self) -> None:
        """Write the producer snapshot and indexes of each log, then the recovery points of all logs."""
        maintenance = self._maintenance
        partitions = list(maintenance.uncheckpointed)
        maintenance.uncheckpointed.clear()
        for partition in self._iterate(partitions):
            if partition.is_closed or partition.log.health.offline is not None:
                continue
            if partition.log.health.read_only:
                maintenance.uncheckpointed[partition] = None
                continue
            done = self._environment.loop.create_future()
            partition.log.durability.checkpoint(lambda done=done: done.set_result(None))  # type: ignore[misc]
            await done
            if partition in maintenance.unflushed:
                # The recovery point is below the log end offset; the next checkpoint has a higher one.
                maintenance.uncheckpointed[partition] = None
        if not await self._replicas.logs.write_checkpoints_if_possible():
            open_partitions = [partition for partition in partitions if not partition.is_closed]
            maintenance.uncheckpointed.update(dict.fromkeys(open_partitions))

    async def enforce_retention(self) -> None:
        """Delete old segments, remove expired producers, close files without readers."""
        removed, history = 0, self._replicas.history
        partitions = list(self._replicas.partitions.values())
        await history.refresh(each for each in partitions if each.log.config.kbroker_archive_before_delete)
        for partition in self._iterate(partitions):
            now_ms = self._environment.clock.now_ms()
            log = partition.log
            log.producers.remove_expired(now_ms, self._config().producer_id_expiration_ms)
            if partition.is_closed or log.health.offline is not None:
                continue
            start_before = log.log_start_offset
            limit = partition.high_watermark
            if partition.retention_limit is not None:
                limit = min(limit, partition.retention_limit(now_ms))
            if log.config.kbroker_archive_before_delete:
                archived = history.known_bounds(partition)
                limit = min(limit, log.log_start_offset if archived is None else archived[1])
            segments = log.enforce_retention(now_ms, limit)
            log.close_segment_files(idle_only=True)
            removed += segments
            if log.log_start_offset != start_before:
                self._maintenance.stats.retention_segments += segments
                event_log.info(
                    "retention removed segments",
                    partition=partition.tp,
                    segments=segments,
                    log_start=log.log_start_offset,
                )
                partition.notify_all()
        if removed:
            await self._replicas.logs.write_checkpoints_if_possible()

    async def close_files(self) -> None:
        """Close the files of closed segments, even those being read, because file descriptors are short."""
        self._maintenance.out_of_descriptors = False
        for partition in self._iterate(list(self._replicas.partitions.values())):
            partition.log.close_segment_files(idle_only=False)
