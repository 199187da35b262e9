"""The leader-epoch-checkpoint file of a log."""

from collections.abc import Callable, Iterable

from kbroker.runtime.disk import Disk
from kbroker.storage.checkpoint_files import decode_epochs, encode_epochs
from kbroker.storage.file_names import LEADER_EPOCHS


class LeaderEpochFile:
    """The file is written when the epochs change, and synced before the recovery point moves past the change: recovery
    completes the file from the log, but only from the recovery point on."""

    __slots__ = ("_disk", "_synced", "_written", "path")

    def __init__(self, disk: Disk, directory: str) -> None:
        self.path = f"{directory}/{LEADER_EPOCHS}"
        self._disk = disk
        # The content as it was written last, and as it was synced last.
        self._written = b""
        self._synced = b""

    def read_blocking(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) in order. Raises ValueError if the file is damaged, FileNotFoundError."""
        data = self._disk.read(self.path)
        if not data:
            raise ValueError("empty")
        entries = decode_epochs(data)
        self._written = data
        return entries

    def mark_synced(self) -> None:
        """The last shutdown was clean: what the file says is durable."""
        self._synced = self._written

    def write_job(self, entries: Iterable[tuple[int, int]]) -> Callable[[], None] | None:
        """Return a job for a thread that writes the file without a sync; None if it would not change."""
        data = encode_epochs(entries)
        if data == self._written:
            return None
        self._written = data
        return lambda: self._disk.write_atomic(self.path, data, sync=False)

    def sync_job(self) -> Callable[[], None]:
        """Return a job for a thread that makes durable what was written last."""
        data = self._written

        def write() -> None:
            if data != self._synced:
                self._disk.write_atomic(self.path, data)
                self._synced = data

        return write
