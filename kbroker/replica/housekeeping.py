"""Regular work on the logs: flushing, checkpoints, retention, expiry of producers, cleaning of internal topics.

A round over many logs gives the loop back between them, so that thousands of idle partitions cost no latency.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kbroker.config import BrokerConfig
from kbroker.model import KafkaError
from kbroker.replica.manager import ReplicaManager
from kbroker.replica.partition import Partition

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle

    from kbroker.world import World

log = logging.getLogger("kbroker.logs")

FLUSH_ROUND_MS = 1_000
# A log that was appended to and then left alone for so long is synced, so that recovery need not read it.
IDLE_FLUSH_MS = 10_000
CLEANING_ROUND_MS = 15_000
FULL_PROBE_MS = 1_000
NEVER = 2**63 - 1


class Round:
    """A piece of work that is repeated: at most one at a time, `period_ms()` after the last one has ended."""

    def __init__(self, world: World, name: str, period_ms: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        self._world = world
        self._name = name
        self._period_ms = period_ms
        self._work = work
        self._timer: TimerHandle | None = None
        self._task: Task[None] | None = None
        self._stopped = False

    def schedule(self) -> None:
        if not self._stopped:
            self._timer = self._world.loop.call_later(self._period_ms() / 1000, self._begin)

    def _begin(self) -> None:
        self._task = self._world.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            log.exception("%s failed", self._name)
        self.schedule()

    async def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            await self._task


class Housekeeping:
    """All rounds of one broker."""

    def __init__(self, world: World, replicas: ReplicaManager, config: Callable[[], BrokerConfig]) -> None:
        self._world = world
        self._replicas = replicas
        self._config = config
        self._rounds = [
            Round(world, "flushing", lambda: FLUSH_ROUND_MS, self.flush),
            Round(world, "checkpointing", lambda: config().log_flush_offset_checkpoint_interval_ms, self.checkpoint),
            Round(world, "retention", lambda: config().log_retention_check_interval_ms, self.retain),
            Round(world, "cleaning", lambda: CLEANING_ROUND_MS, self.clean),
        ]

    def start(self) -> None:
        for one in self._rounds:
            one.schedule()

    async def stop(self) -> None:
        for one in self._rounds:
            await one.stop()

    async def flush(self) -> None:
        """Sync what flush.ms says is due, and what has come to rest; let full logs try again."""
        now_ms = self._world.clock.now_ms()
        replicas = self._replicas
        for partition, (since_ms, last_ms) in list(replicas.dirty.items()):
            storage = partition.log
            if partition.closed or storage.offline is not None or storage.recovery_point >= storage.log_end_offset:
                replicas.dirty.pop(partition, None)
                continue
            if storage.full:
                await self._probe(partition)
            if now_ms - since_ms >= storage.config.flush_ms or now_ms - last_ms >= IDLE_FLUSH_MS:
                try:
                    await replicas.flush_now(partition)
                except KafkaError as error:
                    log.error("%s: %s", partition.tp, error)

    async def _probe(self, partition: Partition) -> None:
        if await self._world.offload(partition.log.probe_blocking):
            partition.log.resume()
            log.info("%s: there is room again, appends resume", partition.tp)

    async def checkpoint(self) -> None:
        """Write what lets recovery start late in each log, then the offsets from which it will."""
        for partition in await self._all():
            if not partition.closed and partition.log.offline is None:
                done = self._world.loop.create_future()
                partition.log.checkpoint(lambda done=done: done.done() or done.set_result(None))  # type: ignore[misc]
                await done
        await self._replicas.logs.write_checkpoints()

    async def retain(self) -> None:
        """Remove old segments, expire producers, close files that nobody reads."""
        for partition in await self._all():
            now_ms = self._world.clock.now_ms()
            storage = partition.log
            if partition.closed or storage.offline is not None:
                continue
            before = storage.log_start_offset
            storage.producers.remove_expired(now_ms, self._config().producer_id_expiration_ms)
            removed = storage.enforce_retention(now_ms, partition.high_watermark)
            storage.release_idle()
            if storage.log_start_offset != before:
                log.info("%s: retention removed %d segments up to offset %d", partition.tp, removed, storage.log_start_offset)
                partition.wake(0)
        await self._replicas.logs.write_checkpoints()

    async def clean(self) -> None:
        """Compact the internal topics, so that loading them stays quick."""

    async def _all(self) -> list[Partition]:
        return list(self._replicas.partitions.values())
