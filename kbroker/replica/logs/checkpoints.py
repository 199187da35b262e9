"""The checkpoints of a data directory: where to recover each log from, where it starts, how far it is cleaned."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.runtime.event_log import EventLogger
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.clean_shutdown_file import consume_clean_shutdown_file

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

# Hears of an event: its message, and its fields by keyword.
Report = Callable[..., None]

log = EventLogger("kbroker.logs")


class Marks(NamedTuple):
    """The checkpoints: offsets of the partitions that have them. `complete`: whether the recovery points are those of
    the last process, and not lost."""

    recovery_points: Mapping[TopicPartition, int]
    start_offsets: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    complete: bool = True

    def only_of(self, known: Container[TopicPartition]) -> bool:
        """Whether no other partition is in them."""
        return all(tp in known for part in (self.recovery_points, self.start_offsets, self.cleaned) for tp in part)

    def updated(self, logs: Iterable[Log], unopened: Iterable[TopicPartition]) -> Marks:
        """Those of all logs as they are now; of what could not be opened, these, which a start has found."""
        points, starts, cleaned = (
            {tp: part[tp] for tp in unopened if tp in part}
            for part in (self.recovery_points, self.start_offsets, self.cleaned)
        )
        for one in logs:
            points[one.tp] = one.recovery_point
            if one.log_start_offset > 0:
                starts[one.tp] = one.log_start_offset
            if one.cleaned_to > 0:
                cleaned[one.tp] = one.cleaned_to
        return Marks(points, starts, cleaned)


class StartupState(NamedTuple):
    """What a start has found: whether the last stop was clean, and the checkpoints."""

    clean: bool
    marks: Marks


# Of a log that is new.
NOTHING = StartupState(True, Marks({}, {}, {}))


class Checkpoints:
    """Their files in one data directory. `now` gives what is to be written, asked for when a write begins.

    `outdated`: those on disk have offsets of logs that are gone. They must be written before there are logs of the
    same names, whose records would lie below the start of the old ones.
    """

    def __init__(self, environment: Environment, path: str, now: Callable[[], Marks]) -> None:
        self.outdated = False
        self._environment = environment
        self._path = path
        self._now = now
        # It is in the log that the last write failed.
        self._failing = False
        self._waiting: list[Future[None]] = []
        self._writing: Task[None] | None = None

    def take_blocking(self, report: Report) -> StartupState:
        """What the last process has left; the mark of a clean stop is removed. `report` hears of damage."""
        disk = self._environment.disk
        clean = consume_clean_shutdown_file(disk, self._path)
        marks = []
        # It is there from the first start on, so it was lost if it is not.
        complete = disk.exists(f"{self._path}/{file_names.RECOVERY_POINTS}")
        for name in (file_names.RECOVERY_POINTS, file_names.LOG_START_OFFSETS, file_names.CLEANER_OFFSETS):
            try:
                marks.append(checkpoint_files.read_offsets(disk, self._path, name))
            except (ValueError, IndexError) as error:
                report("checkpoint damaged, logs are read from their start", file=name, reason=error)
                marks.append({})
                clean = complete = False
        points, starts, cleaned = marks
        return StartupState(clean, Marks(points, starts, cleaned, complete))

    async def write(self) -> None:
        """Write those of all logs, durably. Raises OSError.

        One write runs at a time: two would share a temporary file, and the older could replace the newer. Who asks
        during a write waits for the next one, together with all others who do.
        """
        loop = self._environment.loop
        written = loop.create_future()
        self._waiting.append(written)
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        await written

    async def write_if_possible(self) -> bool:
        """As `write`, but logs OSError instead of raising it; returns whether it succeeded. `outdated` stays if not."""
        try:
            await self.write()
        except OSError as error:
            if not self._failing:
                log.warning("checkpoints could not be written, tried again later", reason=error)
            self._failing = True
            return False
        if self._failing:
            log.info("checkpoints are written again")
        self._failing = False
        return True

    async def _write(self) -> None:
        while self._waiting:
            served, self._waiting = self._waiting, []
            outdated, self.outdated = self.outdated, False
            failure: Exception | None = None
            try:
                await self._environment.offload(self._write_blocking, self._now())
            except Exception as error:
                failure = error
                self.outdated |= outdated
            for written in served:
                if written.done():
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)
        self._writing = None

    def _write_blocking(self, marks: Marks) -> None:
        disk = self._environment.disk
        checkpoint_files.write_offsets(disk, self._path, file_names.RECOVERY_POINTS, marks.recovery_points)
        checkpoint_files.write_offsets(disk, self._path, file_names.LOG_START_OFFSETS, marks.start_offsets)
        if marks.cleaned or disk.exists(f"{self._path}/{file_names.CLEANER_OFFSETS}"):
            checkpoint_files.write_offsets(disk, self._path, file_names.CLEANER_OFFSETS, marks.cleaned)
