"""Regular work on the logs: flushing, checkpoints, retention, expiry of producers, compaction.

Each kind is a round, which runs only while there is something for it to do. A round over many logs gives the loop
back between them, so that thousands of idle partitions cost no latency.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.config import BrokerConfig
from kbroker.model import KafkaError
from kbroker.replica.manager import ReplicaManager
from kbroker.replica.partition import Partition
from kbroker.storage import compaction

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle

    from kbroker.world import World

log = logging.getLogger("kbroker.logs")

FLUSH_ROUND_MS = 1_000
# A log that was appended to and then left alone for so long is synced, so that recovery need not read it.
IDLE_FLUSH_MS = 10_000
CLEANING_ROUND_MS = 15_000
REOPENING_ROUND_MS = 10_000
# Memory for the keys that one compaction compares; with more keys it takes several rounds.
COMPACTION_MAP_BYTES = 16 << 20
PARTITIONS_A_TURN = 50


def always() -> bool:
    return True


class Round:
    """A piece of work that is repeated while it is `wanted`: at most one at a time, `period_ms` after the last one."""

    def __init__(
        self,
        world: World,
        name: str,
        period_ms: Callable[[], int],
        work: Callable[[], Awaitable[None]],
        wanted: Callable[[], object] = always,
    ) -> None:
        self._world = world
        self._name = name
        self._period_ms = period_ms
        self._work = work
        self._wanted = wanted
        self._timer: TimerHandle | None = None
        self._task: Task[None] | None = None
        self._stopped = False

    def arm(self) -> None:
        """Begin after the period, if there is something to do and nothing under way."""
        if self._timer is None and self._task is None and not self._stopped and self._wanted():
            self._timer = self._world.loop.call_later(self._period_ms() / 1000, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = self._world.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            log.exception("%s failed", self._name)
        self._task = None
        self.arm()

    async def stop(self) -> None:
        """Wait for what is under way."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task


class Housekeeping:
    """All rounds of one broker."""

    def __init__(self, world: World, replicas: ReplicaManager, config: Callable[[], BrokerConfig]) -> None:
        self._world = world
        self._replicas = replicas
        upkeep = self._upkeep = replicas.upkeep
        self._config = config
        self._stopped = False

        def checkpoint_ms() -> int:
            return config().log_flush_offset_checkpoint_interval_ms

        def retention_ms() -> int:
            return config().log_retention_check_interval_ms

        self._rounds = [
            Round(world, "flushing", lambda: FLUSH_ROUND_MS, self.flush, lambda: upkeep.dirty or upkeep.full),
            Round(world, "checkpointing", checkpoint_ms, self.checkpoint, lambda: upkeep.unchecked),
            Round(world, "retention", retention_ms, self.retain),
            Round(world, "compaction", lambda: CLEANING_ROUND_MS, self.clean, lambda: upkeep.uncleaned),
            Round(world, "opening", lambda: REOPENING_ROUND_MS, replicas.open_missing, lambda: upkeep.missing),
        ]

    def start(self) -> None:
        self._upkeep.on_more = self._arm
        self._arm()

    def _arm(self) -> None:
        for one in self._rounds:
            one.arm()

    async def stop(self) -> None:
        self._stopped = True
        for one in self._rounds:
            await one.stop()

    async def flush(self) -> None:
        """Sync what flush.ms says is due, and what has come to rest; let full logs try again."""
        for partition in list(self._upkeep.full):
            await self._probe(partition)
        now_ms = self._world.clock.now_ms()
        dirty = self._upkeep.dirty
        async for partition in self._gently(list(dirty)):
            since_ms, last_ms = dirty.get(partition, (now_ms, now_ms))
            storage = partition.log
            if partition.closed or storage.offline is not None or storage.recovery_point >= storage.log_end_offset:
                dirty.pop(partition, None)
            elif now_ms - since_ms >= storage.config.flush_ms or now_ms - last_ms >= IDLE_FLUSH_MS:
                try:
                    await self._upkeep.flush_now(partition)
                except KafkaError as error:
                    if not partition.closed:
                        log.error("%s is offline until a restart: %s", partition.tp, error)

    async def _probe(self, partition: Partition) -> None:
        """Is there room again? Kafka would have stopped; here appends are refused until there is."""
        storage = partition.log
        if not storage.full or partition.closed or storage.offline is not None:
            self._upkeep.full.pop(partition, None)
        elif await self._world.offload(storage.probe_blocking) and not partition.closed:
            storage.resume()
            self._upkeep.full.pop(partition, None)
            log.info("%s: there is room again, appends resume", partition.tp)

    async def checkpoint(self) -> None:
        """Write what lets recovery start late in each log, then the offsets from which it will."""
        upkeep = self._upkeep
        partitions = list(upkeep.unchecked)
        upkeep.unchecked.clear()
        async for partition in self._gently(partitions):
            if partition.closed or partition.log.offline is not None:
                continue
            done = self._world.loop.create_future()
            partition.log.checkpoint(lambda done=done: done.set_result(None))  # type: ignore[misc]
            await done
            if partition in upkeep.dirty:
                # It was appended to meanwhile, or is not known to be clean yet.
                upkeep.unchecked[partition] = None
        await self._replicas.logs.write_checkpoints()

    async def retain(self) -> None:
        """Remove old segments, expire producers, close files that nobody reads."""
        removed = 0
        async for partition in self._gently(list(self._replicas.partitions.values())):
            now_ms = self._world.clock.now_ms()
            storage = partition.log
            if partition.closed or storage.offline is not None:
                continue
            before = storage.log_start_offset
            storage.producers.remove_expired(now_ms, self._config().producer_id_expiration_ms)
            segments = storage.enforce_retention(now_ms, partition.high_watermark)
            storage.release_idle()
            removed += segments
            if storage.log_start_offset != before:
                log.info("%s: retention removed %d segments up to %d", partition.tp, segments, storage.log_start_offset)
                partition.wake(0)
        if removed:
            await self._replicas.logs.write_checkpoints()

    async def clean(self) -> None:
        """Compact the topics whose cleanup policy says so."""
        upkeep = self._upkeep
        async for partition in self._gently(list(upkeep.uncleaned)):
            await self._clean(partition)
            storage = partition.log
            done = storage.cleaned_to >= storage.active.base_offset and partition not in upkeep.dirty
            if partition.closed or done or not storage.config.compact:
                # Until it is appended to again, or altered. What is unsynced is not announced again by an append.
                upkeep.uncleaned.pop(partition, None)

    async def _clean(self, partition: Partition) -> None:
        storage = partition.log
        if self._stopped or partition.closed or not storage.config.compact:
            return
        task = compaction.plan(
            storage,
            self._world.clock.now_ms(),
            partition.last_stable_offset,
            dirty_ratio=storage.config.min_cleanable_dirty_ratio,
            map_bytes=COMPACTION_MAP_BYTES,
        )
        if task is None:
            return

        def given_up() -> bool:
            return self._stopped or partition.closed

        try:
            result = await self._world.offload(compaction.run_blocking, self._world.disk, task, given_up)
        except (compaction.CompactionFailed, OSError) as error:
            if not given_up():
                log.warning("%s could not be compacted: %s", partition.tp, error)
            return
        if not partition.closed:
            compaction.install(storage, result)
            log.info("%s: compacted up to %d", partition.tp, result.cleaned_to)

    async def _gently(self, partitions: Iterable[Partition]) -> AsyncIterator[Partition]:
        """Each of them, with turns of the loop between."""
        for number, partition in enumerate(partitions):
            if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                turn = self._world.loop.create_future()
                self._world.loop.call_soon(turn.set_result, None)
                await turn
            if self._stopped:
                return
            yield partition
