"""Deleting the files of segments that have left the log: renamed at once, unlinked after file.delete.delay.ms."""

from collections.abc import Iterable, Sequence

from kbroker.runtime.disk import Disk
from kbroker.storage.log.segment import LogSegment


def rename_deleted_blocking(segments: Sequence[LogSegment]) -> list[str]:
    """Rename the files to `.deleted` and return their new paths. Raises OSError."""
    return [path for segment in segments for path in segment.rename_deleted_blocking()]


def unlink_blocking(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            disk.unlink(path)
        except OSError:
            # The partition's directory was removed; or the next start removes the file.
            continue


def delete_now_blocking(segment: LogSegment) -> None:
    """Delete the files of a segment at once: nothing reads the log yet. Raises OSError."""
    segment.retire()
    segment.close_files()
    for path in segment.rename_deleted_blocking():
        segment.disk.unlink(path)
