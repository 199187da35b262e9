"""Syncs logs in threads: on request (flush.before.ack, flush.messages) and for the flush task (flush.ms)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from kbroker.storage.log.log_health import is_unbegun_sync
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.runtime.environment import Environment

# If a requested sync cannot start, it is retried after this delay.
RETRY_S = 1.0


class LogFlusher:
    """`unflushed`: the partitions with unsynced data, which a flush updates (see PartitionMaintenance)."""

    def __init__(self, environment: Environment, unflushed: dict[Partition, list[int]]) -> None:
        self._environment = environment
        self._unflushed = unflushed
        self._tasks: set[Task[None]] = set()

    def request_flush(self, partition: Partition) -> None:
        """Sync the log, then advance the high watermark.

        One sync runs at a time; the next one covers all appends that were made meanwhile (group commit).
        """
        if partition.is_flushing:
            return
        partition.is_flushing = True
        task = self._environment.loop.create_task(self._flush(partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush(self, partition: Partition) -> None:
        log = partition.log
        try:
            while not partition.is_closed:
                # A checkpoint may have synced the log already. A request that completes now may append, which requires
                # another sync.
                partition.advance_high_watermark()
                if log.recovery_point >= log.log_end_offset:
                    break
                if not await self.flush(partition):
                    await self._environment.sleep(RETRY_S)
        except KafkaError as error:
            partition.fail_waiting(error.code)
        finally:
            partition.is_flushing = False

    async def flush(self, partition: Partition) -> bool:
        """Sync the log. Returns False if no file descriptor was free; then the sync may be retried.

        A sync that started and failed takes the log offline and is never retried: the kernel may have dropped the data
        and reports success the next time (fsyncgate). Raises KafkaError, also if the log was offline before.
        """
        log = partition.log
        if log.health.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.health.offline)
        target, truncations, began_ms = log.log_end_offset, log.truncations, self._environment.clock.now_ms()
        try:
            await self._environment.offload(log.durability.flush_blocking, target)
        except Exception as error:
            if isinstance(error, OSError) and is_unbegun_sync(error) and log.health.offline is None:
                log.health.on_shortage("sync", error)
                return False
            if not partition.is_closed:
                log.health.mark_offline(f"sync failed: {error}")
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.health.offline) from error
        log.complete_flush(target, truncations)
        if log.recovery_point >= log.log_end_offset:
            self._unflushed.pop(partition, None)
        elif partition in self._unflushed:
            # The remaining data was appended after the sync began.
            self._unflushed[partition][0] = began_ms
        return True

    async def wait(self) -> None:
        """Wait for the requested syncs in progress."""
        for task in list(self._tasks):
            await task
