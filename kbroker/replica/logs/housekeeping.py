"""Regular work on the logs: flushing, checkpoints, retention, expiry of producers. Compaction is in cleaning.py.

Each kind is a round, which runs only while there is something for it to do. A round over many logs gives the loop
back between them, so that thousands of idle partitions cost no latency.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.replica.assignments import Assignments
from kbroker.replica.partition import Partition
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask, iterate_yielding

if TYPE_CHECKING:
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.logs")

FLUSH_ROUND_MS = 1_000
# A log that was appended to and then left alone for so long is synced, so that recovery need not read it.
IDLE_FLUSH_MS = 10_000
REOPENING_ROUND_MS = 10_000
# After an operation had no file descriptor.
CLOSING_FILES_MS = 100


class Housekeeping:
    """All rounds of one broker."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        assignments: Assignments,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._environment = environment
        self._replicas = replicas
        upkeep = self._upkeep = replicas.dirty_partitions
        self._config = config
        self._stopped = False

        def checkpoint_ms() -> int:
            return config().log_flush_offset_checkpoint_interval_ms

        def retention_ms() -> int:
            return config().log_retention_check_interval_ms

        self._rounds = [
            PeriodicTask(
                environment, "flushing", lambda: FLUSH_ROUND_MS, self.flush, lambda: upkeep.dirty or upkeep.full
            ),
            PeriodicTask(environment, "checkpointing", checkpoint_ms, self.checkpoint, lambda: upkeep.unchecked),
            PeriodicTask(environment, "retention", retention_ms, self.retain),
            PeriodicTask(
                environment, "closing files", lambda: CLOSING_FILES_MS, self.close_files, lambda: upkeep.out_of_files
            ),
            PeriodicTask(
                environment, "opening", lambda: REOPENING_ROUND_MS, assignments.open_missing, lambda: upkeep.missing
            ),
        ]

    def start(self) -> None:
        self._upkeep.listen(self._arm)
        self._arm()

    def _arm(self) -> None:
        for one in self._rounds:
            one.schedule()

    def _gently(self, partitions: Iterable[Partition]) -> AsyncIterator[Partition]:
        return iterate_yielding(self._environment, partitions, lambda: self._stopped)

    async def stop(self) -> None:
        self._stopped = True
        for one in self._rounds:
            await one.stop()

    async def flush(self) -> None:
        """Sync what flush.ms says is due, and what has come to rest; let full logs try again."""
        for partition in [] if self._upkeep.held else list(self._upkeep.full):
            await self._probe(partition)
        now_ms = self._environment.clock.now_ms()
        dirty = self._upkeep.dirty
        async for partition in self._gently(list(dirty)):
            since_ms, last_ms = dirty.get(partition, (now_ms, now_ms))
            storage = partition.log
            if partition.is_closed or storage.offline is not None or storage.recovery_point >= storage.log_end_offset:
                dirty.pop(partition, None)
            elif storage.read_only:
                # A sync would fail, and a failed one is never repeated: it waits until the file system is writable.
                continue
            elif now_ms - since_ms >= storage.config.flush_ms or now_ms - last_ms >= IDLE_FLUSH_MS:
                # The log says why it goes offline.
                with suppress(KafkaError):
                    await self._upkeep.flush_now(partition)

    async def _probe(self, partition: Partition) -> None:
        """Can it be written to again? Kafka would have stopped; here appends are refused until it can."""
        storage = partition.log
        if not storage.full or partition.is_closed or storage.offline is not None:
            self._upkeep.full.pop(partition, None)
        elif await self._environment.offload(storage.probe_blocking) and not partition.is_closed:
            what = "the file system is writable again" if storage.read_only else "there is room again"
            storage.resume()
            self._upkeep.full.pop(partition, None)
            log.info(f"{what}, appends resume", partition=partition.tp)

    async def checkpoint(self) -> None:
        """Write what lets recovery start late in each log, then the offsets from which it will."""
        upkeep = self._upkeep
        partitions = list(upkeep.unchecked)
        upkeep.unchecked.clear()
        async for partition in self._gently(partitions):
            if partition.is_closed or partition.log.offline is not None:
                continue
            if partition.log.read_only:
                upkeep.unchecked[partition] = None
                continue
            done = self._environment.loop.create_future()
            partition.log.checkpoint(lambda done=done: done.set_result(None))  # type: ignore[misc]
            await done
            if partition in upkeep.dirty:
                # It was appended to meanwhile, or is not known to be clean yet.
                upkeep.unchecked[partition] = None
        if not await self._replicas.logs.write_checkpoints_if_possible():
            upkeep.unchecked.update(dict.fromkeys(one for one in partitions if not one.is_closed))

    async def retain(self) -> None:
        """Remove old segments, expire producers, close files that nobody reads."""
        removed = 0
        async for partition in self._gently(list(self._replicas.partitions.values())):
            now_ms = self._environment.clock.now_ms()
            storage = partition.log
            if partition.is_closed or storage.offline is not None:
                continue
            before = storage.log_start_offset
            storage.producers.remove_expired(now_ms, self._config().producer_id_expiration_ms)
            segments = storage.enforce_retention(now_ms, partition.high_watermark)
            storage.close_idle_files()
            removed += segments
            if storage.log_start_offset != before:
                self._upkeep.work.retention_segments += segments
                start = storage.log_start_offset
                log.info("retention removed segments", partition=partition.tp, segments=segments, log_start=start)
                partition.notify_fetchers(0)
        if removed:
            await self._replicas.logs.write_checkpoints_if_possible()

    async def close_files(self) -> None:
        """File descriptors are short: close the files of closed segments, those that are being read included."""
        self._upkeep.out_of_files = False
        async for partition in self._gently(list(self._replicas.partitions.values())):
            partition.log.close_closed_segments()
