"""The producer snapshots of a log: `.snapshot` files, each named after the offset at which it was taken.

A snapshot at the base offset of a segment is kept as long as the segment. A snapshot at another offset is useful only
while it is the newest, so the next one replaces it.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from kbroker.runtime.disk import Disk
from kbroker.storage.file_names import SNAPSHOT, segment_file
from kbroker.storage.producers.producer_state_manager import ProducerStateManager

# An own empty set takes 216 bytes.
_NO_OFFSETS: frozenset[int] = frozenset()


class ProducerSnapshots:
    """`offsets`: the offsets of the snapshots on disk. Files of some are missing if the disk was full when they should
    have been written."""

    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = _NO_OFFSETS

    def _path(self, offset: int) -> str:
        return segment_file(self._directory, offset, SNAPSHOT)

    def is_missing(self, offset: int, first_base_offset: int) -> bool:
        """Return whether a snapshot at `offset` is to be written. A log without records needs none."""
        return offset not in self.offsets and offset > first_base_offset

    def write_job(
        self, offset: int, producers: ProducerStateManager, base_offsets: Collection[int], *, sync: bool
    ) -> Callable[[], None]:
        """Return a job for a thread that writes the current state, at log end offset `offset`.

        `base_offsets` are those of the segments. A snapshot needs no sync, since its CRC reveals a loss and recovery
        then reads more of the log. Only a snapshot at the end of a segment is synced: retention may delete the batches
        it is from.
        """
        # A snapshot that a checkpoint wrote before may be unsynced.
        is_needed = offset > min(base_offsets) if sync else self.is_missing(offset, min(base_offsets))
        if not is_needed:
            return _do_nothing
        encode = producers.to_snapshot()
        replaced = [old for old in self.offsets if old < offset and old not in base_offsets]
        self.offsets = self.offsets.difference(replaced) | {offset}

        def write() -> None:
            self._disk.write_atomic(self._path(offset), encode(), sync=sync)
            for old in replaced:
                self._unlink_blocking(old)

        return write

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove snapshots from `offsets`, because they are deleted together with their segments."""
        self.offsets = self.offsets.difference(offsets)

    # Recovery, in a thread.

    def load_newest_blocking(self, limit: int, repairs: list[str]) -> tuple[ProducerStateManager, int] | None:
        """Return the newest valid snapshot at or before `limit`, and its offset. Removals are added to `repairs`."""
        for offset in sorted([offset for offset in self.offsets if offset <= limit], reverse=True):
            path = self._path(offset)
            if not self._disk.exists(path):
                self.offsets -= {offset}
                continue
            try:
                return ProducerStateManager.from_snapshot(self._disk.read(path), offset), offset
            except ValueError as error:
                repairs.append(f"{path}: {error}; removed")
                self._remove_blocking(offset)
        return None

    def remove_after_blocking(self, offset: int) -> None:
        """Remove the snapshots after an offset to which the log was truncated. Raises OSError."""
        for later in [known for known in self.offsets if known > offset]:
            self._remove_blocking(later)

    def _remove_blocking(self, offset: int) -> None:
        self._unlink_blocking(offset)
        self.offsets -= {offset}

    def _unlink_blocking(self, offset: int) -> None:
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path(offset))


def _do_nothing() -> None:
    pass
