"""Deletes the files of removed segments: they are renamed immediately and unlinked after file.delete.delay.ms."""

from collections.abc import Iterable, Sequence

from kbroker.runtime.disk import Disk
from kbroker.storage.log.segment import LogSegment


class RenameDeleted:
    """A job that renames the files of segments to `.deleted` and returns their new paths.

    After an OSError it may be called again; it continues where it failed.
    """

    def __init__(self, segments: Sequence[LogSegment]) -> None:
        self._segments = segments
        self._renamed: list[str] = []

    def __call__(self) -> list[str]:
        for segment in self._segments:
            self._renamed += segment.rename_deleted_blocking()
        return self._renamed


def unlink_blocking(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except OSError:
            # The partition's directory was removed; or the next start removes the file.
            continue


def delete_now_blocking(segment: LogSegment) -> None:
    """Delete the files of a segment immediately, since nothing reads the log yet. Raises OSError."""
    segment.retire()
    segment.close_files()
    for path in segment.rename_deleted_blocking():
        segment.disk.unlink(path)
