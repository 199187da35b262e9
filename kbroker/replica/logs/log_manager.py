"""The data directory: which logs are in it, how they are opened, removed and closed."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.config import BrokerConfig
from kbroker.config.topic_config import TopicConfig
from kbroker.config.values import ConfigError
from kbroker.replica.logs.background_work import BackgroundWork
from kbroker.replica.logs.checkpoints import NOTHING, Checkpoints, Marks, Report, StartupState
from kbroker.replica.logs.shortages import Shortages
from kbroker.runtime.disk import DiskLock
from kbroker.runtime.event_log import EventLogger
from kbroker.storage import file_names
from kbroker.storage.clean_shutdown_file import write_clean_shutdown_file
from kbroker.storage.log.log import Log
from kbroker.storage.meta_properties import FILE as IDENTITY_FILE
from kbroker.storage.meta_properties import MetaProperties, read_meta_properties, write_meta_properties
from kbroker.storage.partition_metadata import read_topic_id
from kbroker.storage.recovery.open_log import open_log

if TYPE_CHECKING:
    from asyncio import Future

    from kbroker.runtime.environment import Environment

# A partition to open: where, the topic's id, its config overrides.
Wanted = tuple[TopicPartition, bytes, Mapping[str, str]]
log = EventLogger("kbroker.logs")
# Logs opened by one job of a thread: jobs are few, and the threads still share the work.
OPEN_TOGETHER = 16


class DirectoryInUse(Exception):
    """Another broker runs on this data directory."""


class ForeignDirectory(Exception):
    """The data directory is another broker's, or nobody knows whose."""


class LogManager:
    """One data directory, used by one broker at a time. `config` gives the broker's configuration as it is now."""

    def __init__(self, environment: Environment, path: str, config: Callable[[], BrokerConfig]) -> None:
        self.path = path
        self.shortages = Shortages(environment)
        self._environment = environment
        self._config = config
        self._lock: DiskLock | None = None
        # Whose it was when it was looked at last.
        self._owner: MetaProperties | None = None
        self._logs: dict[TopicPartition, Log] = {}
        # Logs that are on disk and could not be opened yet, and what is to be known for that.
        self._unopened: dict[TopicPartition, bytes] = {}
        self._found = NOTHING
        self._checkpoints = Checkpoints(
            environment, path, lambda: self._found.marks.updated(self._logs.values(), self._unopened)
        )
        self._background = BackgroundWork(environment)
        self._complaints: set[tuple[object, ...]] = set()

    # The directory as a whole.

    async def lock(self) -> None:
        """Make the directory if needed and take it for this broker. Raises DirectoryInUse, OSError."""
        try:
            self._lock = await self._environment.offload(self._lock_blocking)
        except BlockingIOError:
            raise DirectoryInUse(f"{self.path} is in use by another broker") from None

    def _lock_blocking(self) -> DiskLock:
        disk = self._environment.disk
        disk.makedirs(self.path)
        return disk.lock(f"{self.path}/{file_names.LOCK}")

    async def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()

    async def check_owner(self, node_id: int, cluster_id: str | None = None) -> None:
        """Raise ForeignDirectory if the directory is not this broker's; a new one becomes its own once the cluster is
        known. Kafka keeps the same file for the same reason: two brokers on one another's data lose it."""
        await self._environment.offload(self._check_owner, node_id, cluster_id)

    def _check_owner(self, node_id: int, cluster_id: str | None) -> None:
        disk = self._environment.disk
        try:
            found = read_meta_properties(disk, self.path)
        except ValueError as error:
            raise ForeignDirectory(f"{self.path}/{IDENTITY_FILE} is damaged: {error}") from None
        self._owner = found
        if found is None:
            if cluster_id is not None:
                drawn = urlsafe_b64encode(self._environment.random.randbytes(16)).decode().rstrip("=")
                write_meta_properties(disk, self.path, MetaProperties(cluster_id, node_id, drawn.replace("-", "_")))
        elif found.node_id != node_id:
            raise ForeignDirectory(f"{self.path} is the data of node.id={found.node_id}; this broker is {node_id}")
        elif cluster_id is not None and found.cluster_id != cluster_id:
            raise ForeignDirectory(f"{self.path} is of cluster {found.cluster_id}; this broker is in {cluster_id}")

    def check_new(self, coordination: str) -> None:
        """Raise ForeignDirectory if the directory was in use at the start: its `coordination` directory is empty, so
        nobody knows its topics any more, and all their logs would be put aside."""
        if self._owner is not None:
            raise ForeignDirectory(
                f"{self.path} is the data of cluster {self._owner.cluster_id}, and the metadata of its topics is "
                f"missing from {coordination}: restore that directory, or remove {IDENTITY_FILE} to begin a new "
                "cluster, which puts all partitions aside"
            )

    def verify_transactions(self) -> bool:
        """transaction.partition.verification.enable"""
        return self._config().transaction_partition_verification_enable

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
        offload = self._environment.offload
        self._found = await offload(self._checkpoints.take_blocking, report)
        await offload(self._tidy, wanted, report)
        self._unopened = {tp: topic_id for tp, topic_id, _ in wanted}
        opened = await self._open_together(wanted, self._config().num_recovery_threads_per_data_dir)
        if self._checkpoints.outdated or not self._found.marks.only_of({tp for tp, _, _ in wanted}):
            self._checkpoints.outdated = True
            await self._checkpoints.write_if_possible()
        elif not self._found.marks.complete:
            # From now on the recovery points are known, to the first crash too.
            self._background.spawn(self._write_checkpoints())
        return opened

    async def _write_checkpoints(self) -> None:
        await self._checkpoints.write_if_possible()

    async def create_all(self, wanted: Sequence[Wanted]) -> list[Log]:
        """Make the logs of new partitions, or open those that could not be opened yet, but for those that cannot be."""
        for tp, topic_id, _ in wanted:
            if self._unopened.get(tp, topic_id) != topic_id:
                # The topic is gone, and this is another of its name.
                del self._unopened[tp]
                self._checkpoints.outdated = True
        if self._checkpoints.outdated:
            await self._checkpoints.write_if_possible()
        return [] if self._checkpoints.outdated else await self._open_together(wanted, len(wanted))

    async def _open_together(self, wanted: Sequence[Wanted], at_once: int) -> list[Log]:
        groups = [wanted[first : first + OPEN_TOGETHER] for first in range(0, len(wanted), OPEN_TOGETHER)]
        results: dict[int, list[Log | None]] = {}
        left = iter(enumerate(groups))

        async def work() -> None:
            for number, group in left:
                found = [self._found if one[0] in self._unopened else NOTHING for one in group]
                results[number] = await self._environment.offload(self._open_some, group, found)

        workers = [self._environment.loop.create_task(work()) for _ in range(min(at_once, len(groups)))]
        for worker in workers:
            await worker
        opened = [one for number in range(len(groups)) for one in results[number] if one is not None]
        for one in opened:
            self._logs[one.tp] = one
            self._unopened.pop(one.tp, None)
            for line in one.repairs:
                log.warning("log repaired", partition=one.tp, repair=line)
        return opened

    def _tidy(self, wanted: Sequence[Wanted], report: Report) -> None:
        """Finish deletions that a stop has interrupted, and put aside logs that are nobody's."""
        disk = self._environment.disk
        ids = {tp: topic_id for tp, topic_id, _ in wanted}
        for name in disk.listdir(self.path):
            directory = f"{self.path}/{name}"
            try:
                if file_names.is_deleted_dir(name):
                    disk.rmtree(directory)
                    continue
                tp = file_names.parse_partition_dir(name)
                if tp is not None and tp not in ids and self._is_nobodys(directory):
                    self._put_aside(directory, tp, report)
            except OSError as error:
                # Nothing of it is used.
                report("directory not removed or put aside, the next start tries again", path=directory, reason=error)

    def _open_some(self, wanted: Sequence[Wanted], found: Sequence[StartupState]) -> list[Log | None]:
        return list(map(self._try_open, wanted, found))

    def _try_open(self, wanted: Wanted, found: StartupState) -> Log | None:
        tp, topic_id, _ = wanted
        try:
            directory = file_names.partition_dir(self.path, tp)
            if self._is_of_another(directory, topic_id):
                self._put_aside(directory, tp, log.warning)
                self._checkpoints.outdated = True
                found = NOTHING
            return self._open(wanted, *found)
        except (OSError, KafkaError) as error:
            self._complain("log cannot be opened", partition=tp, reason=error)
        except Exception as error:
            log.failure("log cannot be opened", error, partition=tp)
        return None

    def _is_of_another(self, directory: str, topic_id: bytes | None) -> bool:
        found = read_topic_id(self._environment.disk, directory)
        return found is not None and found != topic_id

    def _is_nobodys(self, directory: str) -> bool:
        """Of a topic that is not known: whether this is a log at all. Its id may have been lost."""
        disk = self._environment.disk
        if read_topic_id(disk, directory) is not None:
            return True
        parsed = map(file_names.parse_segment_file, disk.listdir(directory) if disk.isdir(directory) else ())
        return any(file is not None and file[1] == file_names.LOG for file in parsed)

    def _put_aside(self, directory: str, tp: TopicPartition, report: Report) -> None:
        """A log of no known topic: its topic was deleted, but not its directory. Like Kafka, which cannot know why
        either, leave it to people to remove it."""
        stray = file_names.stray_dir(self.path, tp, self._unique())
        self._environment.disk.rename(directory, stray)
        report("directory belongs to no topic, put aside", directory=directory, now=stray)

    def _open(self, wanted: Wanted, clean: bool, marks: Marks) -> Log:
        tp, topic_id, overrides = wanted
        opened = open_log(
            self._environment.disk,
            file_names.partition_dir(self.path, tp),
            tp,
            topic_id,
            self.topic_config(tp.topic, overrides),
            marks.recovery_points.get(tp, 0),
            clean,
            self._environment.clock.now_ms(),
            log_start_offset=marks.start_offsets.get(tp, 0),
            cleaned_to=marks.cleaned.get(tp, 0),
            checkpointed=marks.complete,
            background=self._background,
            random=self._environment.random,
        )
        opened.on_shortage = partial(self.shortages.note, tp)
        return opened

    # Removing.

    async def delete_all(self, logs: Sequence[Log]) -> None:
        """Move the logs' directories out of the way now, remove them later."""
        for one in logs:
            if self._logs.get(one.tp) is one:
                del self._logs[one.tp]
                self._checkpoints.outdated = True
            await self._closing(one, clean=False)
        if not logs:
            return
        moves = [(one.directory, file_names.deleted_dir(self.path, one.tp, self._unique())) for one in logs]
        await self._environment.offload(self._each, self._environment.disk.rename, moves)
        try:
            await self.write_checkpoints()
        except OSError as error:
            log.warning("checkpoints still name deleted logs", reason=error)
        remove = [(path,) for _, path in moves]
        self._background(
            lambda: self._each(self._environment.disk.rmtree, remove), _ignore, logs[0].config.file_delete_delay_ms
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
        return f"{self._environment.random.getrandbits(128):032x}"

    # Checkpoints, and the end.

    async def write_checkpoints(self) -> None:
        """Write the recovery points and log start offsets of all logs, durably. Raises OSError."""
        await self._checkpoints.write()

    async def write_checkpoints_if_possible(self) -> bool:
        """As `write_checkpoints`, but logs OSError instead of raising it; returns whether it succeeded."""
        return await self._checkpoints.write_if_possible()

    async def close_all(self, logs: Sequence[Log]) -> None:
        """Sync and close every log; the mark of a clean stop is left only when all of it worked."""
        closings = [self._closing(one, clean=True) for one in logs]
        results = [await closing for closing in closings]
        await self._background.finish()
        try:
            await self.write_checkpoints()
        except OSError as error:
            log.warning("checkpoints could not be written", reason=error)
            results.append(False)
        if all(results) and (self._found.clean or not self._unopened):
            await self._environment.offload(write_clean_shutdown_file, self._environment.disk, self.path, 0)
        else:
            log.warning("not every log could be closed, the next start will check them")

    def _closing(self, one: Log, clean: bool) -> Future[bool]:
        closed: Future[bool] = self._environment.loop.create_future()

        def done(ok: bool) -> None:
            if not closed.done():
                closed.set_result(ok)

        one.close(clean, done)
        return closed


def _ignore(_: object) -> None:
    pass
