"""The state of a log, which recovery loads from disk and a Log continues with."""

from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from kbroker.common import TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.runtime.disk import Disk
from kbroker.storage.checkpoint_files import IndexEntries, LeaderEpochFile, ProducerSnapshots
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.log_health import LogHealth, ShortageListener
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.producers.producer_state_manager import ProducerStateManager


class DirectorySync:
    """Syncs the directory of a log, and the data directory that contains it, when file names have changed."""

    __slots__ = ("_changes", "_directory", "_disk", "_parent_is_synced", "_synced_changes")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        # The number of changes, and the number of those that are synced.
        self._changes = 0
        self._synced_changes = 0
        self._parent_is_synced = True

    def mark_changed(self) -> None:
        """Record that a file was created, renamed or removed."""
        self._changes += 1

    def mark_unsynced(self) -> None:
        """Record that it is not known whether any name is durable, even that of the directory."""
        self._changes += 1
        self._parent_is_synced = False

    def sync_blocking(self) -> None:
        """Sync the directory if names have changed since the last sync. Raises OSError."""
        # Read before the sync: a change during it requires another sync.
        changes = self._changes
        if self._synced_changes == changes:
            return
        self._disk.sync_dir(self._directory)
        if not self._parent_is_synced:
            self._disk.sync_dir(self._directory.rpartition("/")[0])
            self._parent_is_synced = True
        self._synced_changes = changes


class LogOwner(ShortageListener, Protocol):
    """What a log needs of its LogManager."""

    def create_future(self) -> "Future[Any]": ...

    def spawn(self, coroutine: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine on the event loop; a stop waits for it."""
        ...

    def write_checkpoints(self) -> Awaitable[None]:
        """Write the checkpoint files with the current offsets of all logs, durably. Raises OSError."""
        ...

    def written_high_watermark(self, tp: TopicPartition) -> int:
        """Return the high watermark in the checkpoint file; 0 if it has none."""
        ...


class LogState:
    """The log has records from `log_start_offset` to before `log_end_offset`.

    Everything below `recovery_point` is synced, everything below `cleaned_to` is compacted. `truncations`: how often
    the log was truncated since it was opened. `is_truncating`: nothing else may change the log now. `after_truncation`:
    called once when the truncation in progress has ended. `repairs`: what was repaired when the log was opened, one
    line each.
    """

    __slots__ = (
        "after_truncation", "cleaned_to", "config", "directory", "directory_sync", "disk", "epoch_file", "epochs",
        "health", "is_truncating", "log_end_offset", "log_start_offset", "producers", "recovery_point", "repairs",
        "segments", "snapshots", "tp", "truncations",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        tp: TopicPartition,
        config: TopicConfig,
        shortages: ShortageListener | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.tp = tp
        self.config = config
        self.segments: list[LogSegment] = []
        self.log_start_offset = 0
        self.log_end_offset = 0
        self.recovery_point = 0
        self.cleaned_to = 0
        self.producers = ProducerStateManager()
        self.epochs = LeaderEpochCache()
        self.snapshots = ProducerSnapshots(disk, directory)
        self.epoch_file = LeaderEpochFile(disk, directory)
        self.directory_sync = DirectorySync(disk, directory)
        self.health = LogHealth(tp, shortages)
        self.truncations = 0
        self.is_truncating = False
        self.after_truncation: tuple[Callable[[], None], ...] = ()
        self.repairs: list[str] = []

    def use(self, other: "LogState") -> None:
        """Take over everything from another state of the same log."""
        for name in LogState.__slots__:
            setattr(self, name, getattr(other, name))

    @property
    def durable_recovery_point(self) -> int:
        """The recovery point for the checkpoint file. Recovery looks for leader epochs only from there on, so it is not
        above an epoch that is not durable in its file yet."""
        unsynced = self.epoch_file.first_unsynced(self.epochs.entries)
        return self.recovery_point if unsynced is None else min(self.recovery_point, unsynced)

    def complete_flush(self, offset: int, truncations: int | None = None) -> None:
        """Advance the recovery point to `offset`, below which everything is synced.

        `truncations`: the number of truncations when the flush began. After another one the flush counts for nothing,
        since other batches may have the synced offsets.
        """
        if self.health.offline is None and truncations in (None, self.truncations):
            self.recovery_point = max(self.recovery_point, min(offset, self.log_end_offset))

    def update_high_watermark(self, offset: int) -> None:
        """Mark transactions as stable that ended below the high watermark."""
        self.producers.on_high_watermark_updated(offset)

    def assign_leader_epoch(self, epoch: int) -> None:
        """Start a leader epoch of this broker at the log end offset. The next append writes it to the file."""
        self.epochs.assign(epoch, self.log_end_offset)

    def mark_cleaned(self, offset: int) -> None:
        """Record that everything below `offset` is compacted."""
        self.cleaned_to = max(self.cleaned_to, offset)

    def when_truncated(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, as soon as no truncation is in progress."""
        if self.is_truncating:
            self.after_truncation += (callback,)
        else:
            callback()

    @property
    def readable_end(self) -> int:
        """The offset up to which the log can be read.

        An offline log can be read up to the recovery point, since the rest may not be on the disk; after a failed read
        it cannot be read at all.
        """
        if self.health.offline is None:
            return self.log_end_offset
        return self.recovery_point if self.health.is_readable else self.log_start_offset

    @property
    def size_bytes(self) -> int:
        """The size of all log files, without indexes."""
        return sum([segment.size for segment in self.segments])

    def transaction_index_entries(self) -> IndexEntries:
        """Return the numbers of entries in the transaction index files, by the base offsets of their segments."""
        indexes = {segment.base_offset: segment.indexes.transaction.persisted for segment in self.segments}
        return {base_offset: count for base_offset, count in indexes.items() if count}
