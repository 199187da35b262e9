"""Replaces segment files by compacted ones so that a crash at any point leaves the old or the new ones, as Kafka does.

New files are written as `.cleaned`, and renamed to `.swap` when they are complete and synced. From then on the
replacement is always completed, by `finish_swaps` at the next start if necessary. The source files are removed, then
the new files get their final names.
"""

from collections.abc import Iterable

from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.log.batch_scan import BatchScan

# The files of a compacted segment, the log last. There may be no transaction index.
NEW_SUFFIXES = (file_names.INDEX, file_names.TIME_INDEX, file_names.TXN_INDEX, file_names.LOG)


def promote(disk: Disk, directory: str, base_offset: int) -> None:
    """Rename `.cleaned` files, which are synced, to `.swap`. The log is last: it makes the replacement valid."""
    for suffix in NEW_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if suffix != file_names.TXN_INDEX or disk.exists(path + file_names.CLEANED):
            disk.rename(path + file_names.CLEANED, path + file_names.SWAP)
    disk.sync_dir(directory)


def install(disk: Disk, directory: str, base_offset: int) -> None:
    """Rename `.swap` files to their final names, after the sources were removed. The log is last here as well."""
    for suffix in NEW_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if disk.exists(path + file_names.SWAP):
            disk.rename(path + file_names.SWAP, path)


def abandon(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove `.swap` files whose sources have changed. The log is first, so that no start installs the others."""
    for suffix in reversed(NEW_SUFFIXES):
        path = file_names.segment_file(directory, base_offset, suffix) + file_names.SWAP
        if disk.exists(path):
            disk.unlink(path)


def remove_cleaned(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove the `.cleaned` files of a segment that could not be completed."""
    for suffix in NEW_SUFFIXES:
        try:
            disk.unlink(file_names.segment_file(directory, base_offset, suffix) + file_names.CLEANED)
        except OSError:
            # It was not written yet, or else the next start removes it.
            continue


def finish_swaps(disk: Disk, directory: str, listed: Iterable[str]) -> list[str]:
    """At startup, remove incomplete replacements and finish complete ones. Returns one line for each finished one."""
    repairs = []
    base_offsets = []
    swaps = []
    for name in listed:
        if name.endswith(file_names.CLEANED):
            disk.unlink(f"{directory}/{name}")
        elif name.endswith(file_names.LOG + file_names.SWAP):
            swaps.append(int(name[:20]))
        else:
            parsed = file_names.parse_segment_file(name)
            if parsed is not None and parsed[1] == file_names.LOG:
                base_offsets.append(parsed[0])
    for swap in swaps:
        path = file_names.segment_file(directory, swap, file_names.LOG) + file_names.SWAP
        end_offset = _find_end_offset(disk, path, swap)
        for base_offset in base_offsets:
            if swap <= base_offset < end_offset:
                _remove_segment(disk, directory, base_offset)
        disk.sync_dir(directory)
        install(disk, directory, swap)
        repairs.append(f"{directory}: compaction of offsets {swap} to {end_offset - 1} was finished")
    for name in listed:
        # Indexes that were renamed before the log was.
        if name.endswith(file_names.SWAP) and disk.exists(f"{directory}/{name}"):
            disk.unlink(f"{directory}/{name}")
    return repairs


def _find_end_offset(disk: Disk, path: str, base_offset: int) -> int:
    file = disk.open(path, write=False)
    scan = BatchScan(file, 0, file.size(), base_offset, base_offset, check_crc=False)
    for _ in scan:
        pass
    return max(scan.next_offset, base_offset + 1)


def _remove_segment(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if disk.exists(path):
            disk.unlink(path)
