"""The data directory: which logs are in it, how they are opened and removed, and its checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from kbroker.config import BrokerConfig
from kbroker.config.topic import TopicConfig
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints, names
from kbroker.storage.backend import DiskLock
from kbroker.storage.log import Log
from kbroker.storage.recovery import open_log

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.world import World

T = TypeVar("T")
# A partition to open: where, the topic's id, its config overrides.
Wanted = tuple[TopicPartition, bytes, Mapping[str, str]]

log = logging.getLogger("kbroker.logs")
LOCK_FILE = ".lock"
# Logs opened by one job of a thread: jobs are few, and the threads still share the work.
OPEN_TOGETHER = 16


class DirectoryInUse(Exception):
    """Another broker runs on this data directory."""


class LogDirectory:
    """One data directory, used by one broker at a time. `config` gives the broker's configuration as it is now."""

    def __init__(self, world: World, path: str, config: Callable[[], BrokerConfig]) -> None:
        self.path = path
        self._world = world
        self._config = config
        self._lock: DiskLock | None = None
        self._logs: dict[TopicPartition, Log] = {}
        self._tasks: set[Task[None]] = set()
        self._marks_wanted: list[Future[None]] = []
        self._marking: Task[None] | None = None

    # The directory as a whole.

    async def lock(self) -> None:
        """Make the directory if needed and take it for this broker. Raises DirectoryInUse, OSError."""
        try:
            self._lock = await self._world.offload(self._lock_blocking)
        except BlockingIOError:
            raise DirectoryInUse(f"{self.path} is in use by another broker") from None

    def _lock_blocking(self) -> DiskLock:
        disk = self._world.disk
        disk.makedirs(self.path)
        return disk.lock(f"{self.path}/{LOCK_FILE}")

    async def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def topic_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Effective values of a topic's configs."""
        return TopicConfig.of(overrides, self._config().topic_defaults)

    # Opening and creating.

    async def open_all(self, wanted: Sequence[Wanted], report: Callable[[str], None]) -> list[Log]:
        """Open the logs of a start, recovering what an unclean stop left; `report` hears what was repaired."""
        offload = self._world.offload
        clean, recovery_points, start_offsets = await offload(self._read_marks, report)
        await offload(self._remove_leftovers)
        opened: list[Log] = []
        jobs = []
        for first in range(0, len(wanted), OPEN_TOGETHER):
            some = wanted[first : first + OPEN_TOGETHER]
            jobs.append(offload(self._open_some, some, clean, recovery_points, start_offsets))
        for job in jobs:
            for one in await job:
                opened.append(self._begin(one))
                for line in one.repairs:
                    report(f"{one.tp}: {line}")
        return opened

    def _read_marks(
        self, report: Callable[[str], None]
    ) -> tuple[bool, dict[TopicPartition, int], dict[TopicPartition, int]]:
        disk = self._world.disk
        clean = checkpoints.take_clean_marker(disk, self.path)
        marks = []
        for name in (names.RECOVERY_POINTS, names.LOG_START_OFFSETS):
            try:
                marks.append(checkpoints.read_offsets(disk, self.path, name))
            except (ValueError, IndexError) as error:
                report(f"{name} is damaged ({error}): logs are read from their start")
                marks.append({})
                clean = False
        return clean, marks[0], marks[1]

    def _remove_leftovers(self) -> None:
        for name in self._world.disk.listdir(self.path):
            if names.is_deleted_dir(name):
                self._world.disk.rmtree(f"{self.path}/{name}")

    def _open_some(
        self,
        wanted: Iterable[Wanted],
        clean: bool,
        recovery_points: Mapping[TopicPartition, int],
        start_offsets: Mapping[TopicPartition, int],
    ) -> list[Log]:
        return [self._open(one, clean, recovery_points.get(one[0], 0), start_offsets.get(one[0], 0)) for one in wanted]

    def _open(self, wanted: Wanted, clean: bool, recovery_point: int, log_start_offset: int) -> Log:
        tp, topic_id, overrides = wanted
        return open_log(
            self._world.disk,
            names.partition_dir(self.path, tp),
            tp,
            topic_id,
            self.topic_config(overrides),
            recovery_point,
            clean,
            self._world.clock.now_ms(),
            log_start_offset=log_start_offset,
            background=self.background,
            random=self._world.random,
        )

    async def create_all(self, wanted: Sequence[Wanted]) -> list[Log]:
        """Make the logs of new partitions; a directory of the same name that was left behind is moved away first."""
        offload = self._world.offload
        jobs = [
            offload(self._create_some, wanted[first : first + OPEN_TOGETHER])
            for first in range(0, len(wanted), OPEN_TOGETHER)
        ]
        return [self._begin(one) for job in jobs for one in await job]

    def _create_some(self, wanted: Iterable[Wanted]) -> list[Log]:
        made = []
        for one in wanted:
            directory = names.partition_dir(self.path, one[0])
            if self._world.disk.exists(directory) and checkpoints.read_topic_id(self._world.disk, directory) != one[1]:
                self._put_aside(one[0])
            made.append(self._open(one, True, 0, 0))
        return made

    def _begin(self, opened: Log) -> Log:
        self._logs[opened.tp] = opened
        return opened

    # Removing.

    async def delete_all(self, logs: Sequence[Log]) -> None:
        """Move the logs' directories out of the way now, remove them later."""
        for one in logs:
            if self._logs.get(one.tp) is one:
                del self._logs[one.tp]
            await self._close(one, clean=False)
        if not logs:
            return
        delay_ms = logs[0].config.file_delete_delay_ms
        aside = await self._world.offload(lambda: [self._put_aside(one.tp) for one in logs])
        await self.write_checkpoints()

        def remove() -> None:
            for path in aside:
                try:
                    self._world.disk.rmtree(path)
                except OSError as error:
                    log.warning("cannot remove %s: %s", path, error)

        self.background(remove, lambda _: None, delay_ms)

    def _put_aside(self, tp: TopicPartition) -> str:
        unique = f"{self._world.random.getrandbits(128):032x}"
        aside = names.deleted_dir(self.path, tp, unique)
        self._world.disk.rename(names.partition_dir(self.path, tp), aside)
        return aside

    # Checkpoints.

    async def write_checkpoints(self) -> None:
        """Write the recovery points and log start offsets of all logs, durably. Raises OSError.

        One write runs at a time: two would share a temporary file, and the older could replace the newer. Who asks
        during a write waits for the next one, together with all others who do.
        """
        loop = self._world.loop
        written = loop.create_future()
        self._marks_wanted.append(written)
        if self._marking is None:
            self._marking = loop.create_task(self._mark())
        await written

    async def _mark(self) -> None:
        while self._marks_wanted:
            wanted, self._marks_wanted = self._marks_wanted, []
            points = {tp: one.recovery_point for tp, one in self._logs.items()}
            starts = {tp: one.log_start_offset for tp, one in self._logs.items() if one.log_start_offset > 0}
            failure: Exception | None = None
            try:
                await self._world.offload(self._write_marks, points, starts)
            except Exception as error:
                failure = error
            for written in wanted:
                if written.done():
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)
        self._marking = None

    def _write_marks(self, points: dict[TopicPartition, int], starts: dict[TopicPartition, int]) -> None:
        disk = self._world.disk
        checkpoints.write_offsets(disk, self.path, names.RECOVERY_POINTS, points)
        checkpoints.write_offsets(disk, self.path, names.LOG_START_OFFSETS, starts)

    async def close_all(self, logs: Sequence[Log]) -> None:
        """Sync and close every log; the mark of a clean stop is left only when all of it worked."""
        closings = [self._closing(one, clean=True) for one in logs]
        results = [await closing for closing in closings]
        await self.write_checkpoints()
        if all(results):
            await self._world.offload(checkpoints.write_clean_marker, self._world.disk, self.path, 0)
        else:
            log.warning("not every log could be closed: the next start will check them")

    def _closing(self, one: Log, clean: bool) -> Future[bool]:
        closed: Future[bool] = self._world.loop.create_future()

        def done(ok: bool) -> None:
            if not closed.done():
                closed.set_result(ok)

        one.close(clean, done)
        return closed

    async def _close(self, one: Log, clean: bool) -> bool:
        return await self._closing(one, clean)

    # Background work of logs.

    def background(self, job: Callable[[], T], then: Callable[[T], None], delay_ms: int = 0) -> None:
        """What storage/chores.py asks for: a job in a thread, its result on the loop."""
        if delay_ms > 0:
            self._world.loop.call_later(delay_ms / 1000, self.background, job, then)
            return
        task = self._world.loop.create_task(self._run(job, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        result: Awaitable[T] = self._world.offload(job)
        then(await result)
