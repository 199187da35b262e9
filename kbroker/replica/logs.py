"""The data directory: which logs are in it, how they are opened and removed, and its checkpoints."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker.config import BrokerConfig
from kbroker.config.topic import TopicConfig
from kbroker.config.values import ConfigError
from kbroker.events import Log as EventLog
from kbroker.model import KafkaError, TopicPartition
from kbroker.storage import checkpoints, names
from kbroker.storage.backend import DiskLock
from kbroker.storage.identity import FILE as IDENTITY_FILE
from kbroker.storage.identity import Identity, read_identity, write_identity
from kbroker.storage.log import Log
from kbroker.storage.recovery import open_log

if TYPE_CHECKING:
    from asyncio import Future, Task, TimerHandle

    from kbroker.world import World

T = TypeVar("T")
# A partition to open: where, the topic's id, its config overrides.
Wanted = tuple[TopicPartition, bytes, Mapping[str, str]]
# Hears of an event: its message, and its fields by keyword.
Report = Callable[..., None]


class Marks(NamedTuple):
    """The checkpoints: offsets of the partitions that have them. `complete`: whether the recovery points are those of
    the last process, and not lost."""

    recovery_points: Mapping[TopicPartition, int]
    start_offsets: Mapping[TopicPartition, int]
    cleaned: Mapping[TopicPartition, int]
    complete: bool = True


class Found(NamedTuple):
    """What a start has found: whether the last stop was clean, and the checkpoints."""

    clean: bool
    marks: Marks


# Of a log that is new.
NOTHING = Found(True, Marks({}, {}, {}))


log = EventLog("kbroker.logs")
# Logs opened by one job of a thread: jobs are few, and the threads still share the work.
OPEN_TOGETHER = 16


class DirectoryInUse(Exception):
    """Another broker runs on this data directory."""


class ForeignDirectory(Exception):
    """The data directory is another broker's, or nobody knows whose."""


class LogDirectory:
    """One data directory, used by one broker at a time. `config` gives the broker's configuration as it is now."""

    def __init__(self, world: World, path: str, config: Callable[[], BrokerConfig]) -> None:
        self.path = path
        self._world = world
        self._config = config
        self._lock: DiskLock | None = None
        self._logs: dict[TopicPartition, Log] = {}
        # Logs that are on disk and could not be opened yet, and what is to be known for that.
        self._unopened: dict[TopicPartition, bytes] = {}
        self._found = NOTHING
        # The checkpoints on disk have offsets of logs that are gone. They must be written before there are logs of
        # the same names, whose records would lie below the start of the old ones.
        self._marks_outdated = False
        self._tasks: dict[Task[None], None] = {}
        self._delayed: set[TimerHandle] = set()
        self._complaints: set[tuple[object, ...]] = set()
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
        return disk.lock(f"{self.path}/{names.LOCK}")

    async def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    async def check_owner(self, node_id: int, cluster_id: str | None = None) -> None:
        """Raise ForeignDirectory if the directory is not this broker's; a new one becomes its own once the cluster is
        known. Kafka keeps the same file for the same reason: two brokers on one another's data lose it."""
        await self._world.offload(self._check_owner, node_id, cluster_id)

    def _check_owner(self, node_id: int, cluster_id: str | None) -> None:
        disk = self._world.disk
        try:
            found = read_identity(disk, self.path)
        except ValueError as error:
            raise ForeignDirectory(f"{self.path}/{IDENTITY_FILE} is damaged: {error}") from None
        if found is None:
            if cluster_id is not None:
                drawn = urlsafe_b64encode(self._world.random.randbytes(16)).decode().rstrip("=")
                write_identity(disk, self.path, Identity(cluster_id, node_id, drawn.replace("-", "_")))
        elif found.node_id != node_id:
            raise ForeignDirectory(f"{self.path} is the data of node.id={found.node_id}; this broker is {node_id}")
        elif cluster_id is not None and found.cluster_id != cluster_id:
            raise ForeignDirectory(f"{self.path} is of cluster {found.cluster_id}; this broker is in {cluster_id}")

    def topic_config(self, topic: str, overrides: Mapping[str, str]) -> TopicConfig:
        """Effective values of a topic's configs. What another version has stored and this one refuses is left out."""
        defaults = self._config().topic_defaults
        try:
            return TopicConfig.of(overrides, defaults)
        except ConfigError:
            good: dict[str, str] = {}
        for name, text in overrides.items():
            try:
                TopicConfig.of({name: text}, defaults)
                good[name] = text
            except ConfigError as error:
                self._complain("stored config left out", topic=topic, config=name, reason=error.message)
        return TopicConfig.of(good, defaults)

    def _complain(self, message: str, **fields: object) -> None:
        """Once, however often it is met."""
        said = (message, *map(str, fields.values()))
        if said not in self._complaints:
            self._complaints.add(said)
            log.warning(message, **fields)

    # Opening and creating.

    async def open_all(self, wanted: Sequence[Wanted], report: Report) -> list[Log]:
        """Open the logs of a start, recovering what an unclean stop left; `report` hears what was repaired.

        A log that cannot be opened is left out, so that the others serve.
        """
        offload = self._world.offload
        clean, marks = await offload(self._read_marks, report)
        await offload(self._tidy, wanted, report)
        self._found = Found(clean, marks)
        self._unopened = {tp: topic_id for tp, topic_id, _ in wanted}
        opened = await self._open_together(wanted, self._config().num_recovery_threads_per_data_dir)
        known = {tp for tp, _, _ in wanted}
        if self._marks_outdated or any(tp not in known for part in marks[:3] for tp in part):
            self._marks_outdated = True
            await self._mark_in_time()
        elif not marks.complete:
            self._spawn(self._mark_in_time())
        return opened

    async def _mark_in_time(self) -> None:
        """From now on the recovery points are known, to the first crash too."""
        try:
            await self.write_checkpoints()
        except OSError as error:
            log.warning("checkpoints could not be written, tried again later", reason=error)

    async def create_all(self, wanted: Sequence[Wanted]) -> list[Log]:
        """Make the logs of new partitions, or open those that could not be opened yet, but for those that cannot be."""
        for tp, topic_id, _ in wanted:
            if self._unopened.get(tp, topic_id) != topic_id:
                # The topic is gone, and this is another of its name.
                del self._unopened[tp]
                self._marks_outdated = True
        if self._marks_outdated:
            await self._mark_in_time()
        return [] if self._marks_outdated else await self._open_together(wanted, len(wanted))

    async def _open_together(self, wanted: Sequence[Wanted], at_once: int) -> list[Log]:
        groups = [wanted[first : first + OPEN_TOGETHER] for first in range(0, len(wanted), OPEN_TOGETHER)]
        results: dict[int, list[Log | None]] = {}
        left = iter(enumerate(groups))

        async def work() -> None:
            for number, group in left:
                found = [self._found if one[0] in self._unopened else NOTHING for one in group]
                results[number] = await self._world.offload(self._open_some, group, found)

        workers = [self._world.loop.create_task(work()) for _ in range(min(at_once, len(groups)))]
        for worker in workers:
            await worker
        opened = [one for number in range(len(groups)) for one in results[number] if one is not None]
        for one in opened:
            self._logs[one.tp] = one
            self._unopened.pop(one.tp, None)
            for line in one.repairs:
                log.warning("log repaired", partition=one.tp, repair=line)
        return opened

    def _read_marks(self, report: Report) -> tuple[bool, Marks]:
        disk = self._world.disk
        clean = checkpoints.take_clean_marker(disk, self.path)
        marks = []
        # It is there from the first start on, so it was lost if it is not.
        complete = disk.exists(f"{self.path}/{names.RECOVERY_POINTS}")
        for name in (names.RECOVERY_POINTS, names.LOG_START_OFFSETS, names.CLEANER_OFFSETS):
            try:
                marks.append(checkpoints.read_offsets(disk, self.path, name))
            except (ValueError, IndexError) as error:
                report("checkpoint damaged, logs are read from their start", file=name, reason=error)
                marks.append({})
                clean = complete = False
        points, starts, cleaned = marks
        return clean, Marks(points, starts, cleaned, complete)

    def _tidy(self, wanted: Sequence[Wanted], report: Report) -> None:
        """Finish deletions that a stop has interrupted, and put aside logs that are nobody's."""
        disk = self._world.disk
        ids = {tp: topic_id for tp, topic_id, _ in wanted}
        for name in disk.listdir(self.path):
            directory = f"{self.path}/{name}"
            if names.is_deleted_dir(name):
                disk.rmtree(directory)
                continue
            tp = names.parse_partition_dir(name)
            if tp is not None and tp not in ids and self._is_nobodys(directory):
                self._put_aside(directory, tp, report)

    def _open_some(self, wanted: Sequence[Wanted], found: Sequence[Found]) -> list[Log | None]:
        return list(map(self._try_open, wanted, found))

    def _try_open(self, wanted: Wanted, found: Found) -> Log | None:
        tp, topic_id, _ = wanted
        try:
            directory = names.partition_dir(self.path, tp)
            if self._is_of_another(directory, topic_id):
                self._put_aside(directory, tp, log.warning)
                self._marks_outdated = True
                found = NOTHING
            return self._open(wanted, *found)
        except (OSError, KafkaError) as error:
            self._complain("log cannot be opened", partition=tp, reason=error)
        except Exception as error:
            log.failure("log cannot be opened", error, partition=tp)
        return None

    def _is_of_another(self, directory: str, topic_id: bytes | None) -> bool:
        found = checkpoints.read_topic_id(self._world.disk, directory)
        return found is not None and found != topic_id

    def _is_nobodys(self, directory: str) -> bool:
        """Of a topic that is not known: whether this is a log at all. Its id may have been lost."""
        disk = self._world.disk
        if checkpoints.read_topic_id(disk, directory) is not None:
            return True
        parsed = map(names.parse_segment_file, disk.listdir(directory) if disk.isdir(directory) else ())
        return any(file is not None and file[1] == names.LOG for file in parsed)

    def _put_aside(self, directory: str, tp: TopicPartition, report: Report) -> None:
        """A log of no known topic: its topic was deleted, but not its directory. Like Kafka, which cannot know why
        either, leave it to people to remove it."""
        stray = names.stray_dir(self.path, tp, self._unique())
        self._world.disk.rename(directory, stray)
        report("directory belongs to no topic, put aside", directory=directory, now=stray)

    def _open(self, wanted: Wanted, clean: bool, marks: Marks) -> Log:
        tp, topic_id, overrides = wanted
        opened = open_log(
            self._world.disk,
            names.partition_dir(self.path, tp),
            tp,
            topic_id,
            self.topic_config(tp.topic, overrides),
            marks.recovery_points.get(tp, 0),
            clean,
            self._world.clock.now_ms(),
            log_start_offset=marks.start_offsets.get(tp, 0),
            checkpointed=marks.complete,
            background=self.background,
            random=self._world.random,
        )
        opened.cleaned_to = min(marks.cleaned.get(tp, 0), opened.active.base_offset)
        return opened

    # Removing.

    async def delete_all(self, logs: Sequence[Log]) -> None:
        """Move the logs' directories out of the way now, remove them later."""
        for one in logs:
            if self._logs.get(one.tp) is one:
                del self._logs[one.tp]
                self._marks_outdated = True
            await self._close(one, clean=False)
        if not logs:
            return
        moves = [(one.directory, names.deleted_dir(self.path, one.tp, self._unique())) for one in logs]
        await self._world.offload(self._each, self._world.disk.rename, moves)
        try:
            await self.write_checkpoints()
        except OSError as error:
            log.warning("checkpoints still name deleted logs", reason=error)
        remove = [(path,) for _, path in moves]
        self.background(
            lambda: self._each(self._world.disk.rmtree, remove), _ignore, logs[0].config.file_delete_delay_ms
        )

    @staticmethod
    def _each(action: Callable[..., None], calls: Sequence[tuple[str, ...]]) -> None:
        """One that fails does not keep the others from being done; the next start finishes it."""
        for call in calls:
            try:
                action(*call)
            except OSError as error:
                log.warning("file operation failed", path=call[0], to=call[1] if len(call) > 1 else None, reason=error)

    def _unique(self) -> str:
        return f"{self._world.random.getrandbits(128):032x}"

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
            outdated, self._marks_outdated = self._marks_outdated, False
            failure: Exception | None = None
            try:
                await self._world.offload(self._write_marks, self._marks())
            except Exception as error:
                failure = error
                self._marks_outdated |= outdated
            for written in wanted:
                if written.done():
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)
        self._marking = None

    def _marks(self) -> Marks:
        """Those of all logs; of one that could not be opened, those that were found."""
        old = self._found.marks
        points, starts, cleaned = (
            {tp: part[tp] for tp in self._unopened if tp in part}
            for part in (old.recovery_points, old.start_offsets, old.cleaned)
        )
        logs = self._logs.items()
        points.update((tp, one.recovery_point) for tp, one in logs)
        starts.update((tp, one.log_start_offset) for tp, one in logs if one.log_start_offset > 0)
        cleaned.update((tp, one.cleaned_to) for tp, one in logs if one.cleaned_to > 0)
        return Marks(points, starts, cleaned)

    def _write_marks(self, marks: Marks) -> None:
        disk = self._world.disk
        checkpoints.write_offsets(disk, self.path, names.RECOVERY_POINTS, marks.recovery_points)
        checkpoints.write_offsets(disk, self.path, names.LOG_START_OFFSETS, marks.start_offsets)
        if marks.cleaned or disk.exists(f"{self.path}/{names.CLEANER_OFFSETS}"):
            checkpoints.write_offsets(disk, self.path, names.CLEANER_OFFSETS, marks.cleaned)

    async def close_all(self, logs: Sequence[Log]) -> None:
        """Sync and close every log; the mark of a clean stop is left only when all of it worked."""
        closings = [self._closing(one, clean=True) for one in logs]
        results = [await closing for closing in closings]
        # The next start does what was left for later.
        for timer in self._delayed:
            timer.cancel()
        for task in list(self._tasks):
            await task
        try:
            await self.write_checkpoints()
        except OSError as error:
            log.warning("checkpoints could not be written", reason=error)
            results.append(False)
        if all(results) and (self._found.clean or not self._unopened):
            await self._world.offload(checkpoints.write_clean_marker, self._world.disk, self.path, 0)
        else:
            log.warning("not every log could be closed, the next start will check them")

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

            def begin() -> None:
                self._delayed.discard(timer)
                self.background(job, then)

            timer = self._world.loop.call_later(delay_ms / 1000, begin)
            self._delayed.add(timer)
            return
        self._spawn(self._run(job, then))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._world.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, job: Callable[[], T], then: Callable[[T], None]) -> None:
        result: Awaitable[T] = self._world.offload(job)
        then(await result)


def _ignore(_: object) -> None:
    pass
