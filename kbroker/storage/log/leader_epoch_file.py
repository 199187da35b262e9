"""The leader-epoch-checkpoint file of a log."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from kbroker.runtime.disk import Disk
from kbroker.storage.checkpoint_files import decode_epochs, encode_epochs
from kbroker.storage.file_names import LEADER_EPOCHS

_NO_EPOCHS: Mapping[int, int] = MappingProxyType({})


class LeaderEpochFile:
    """Writes the file when the epochs change, and syncs it before the recovery point passes the change.

    Recovery completes the file from the log, but only from the recovery point on."""

    __slots__ = ("_directory", "_disk", "_durable", "_synced", "_written")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._directory = directory
        self._disk = disk
        # The content that was written last, and the content that was synced last.
        self._written = b""
        self._synced = b""
        # The start offsets of the epochs that are durable in the file.
        self._durable: Mapping[int, int] = _NO_EPOCHS

    @property
    def path(self) -> str:
        return f"{self._directory}/{LEADER_EPOCHS}"

    def read_blocking(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) in order. Raises ValueError if the file is damaged, FileNotFoundError."""
        data = self._disk.read(self.path)
        entries = decode_epochs(data)
        self._written = data
        return entries

    def mark_synced(self) -> None:
        """Record that the file is durable, because the last shutdown was clean."""
        self._synced = self._written

    def mark_durable(self, entries: Iterable[tuple[int, int]]) -> None:
        """Record that these epochs were synced by an earlier process: they begin below the recovery point."""
        self._durable = dict(entries)

    def first_unsynced(self, entries: Iterable[tuple[int, int]]) -> int | None:
        """Return the start offset of the first epoch that a power loss may remove from the file; None if there is none.

        A durable epoch may have an earlier start offset in the file: records before the log start were deleted.
        """
        if self._written is self._synced:
            return None
        unsynced = [start for epoch, start in entries if not 0 <= self._durable.get(epoch, -1) <= start]
        return min(unsynced, default=None)

    def write_job(self, entries: Iterable[tuple[int, int]]) -> Callable[[], None] | None:
        """Return a job for a thread that writes the file without a sync; None if it would not change."""
        data = encode_epochs(entries)
        if data == self._written:
            return None
        self._written = data
        return lambda: self._disk.write_atomic(self.path, data, sync=False)

    def write_blocking(self, entries: Iterable[tuple[int, int]]) -> None:
        """Write the file durably, while no job writes it. Raises OSError."""
        self._written = encode_epochs(entries)
        self.sync_job()()

    def sync_job(self) -> Callable[[], None]:
        """Return a job for a thread that syncs the content that was written last."""
        data = self._written

        def write() -> None:
            if data != self._synced:
                self._disk.write_atomic(self.path, data)
                self._synced, self._durable = data, dict(decode_epochs(data))

        return write
