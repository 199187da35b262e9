"""Replacing segments by a compacted one so that a crash at any point leaves the old or the new, as Kafka does it.

The new files are written as `.cleaned`, and renamed to `.swap` when they are complete and synced: from there on the
replacement is carried through, by `finish_swaps` at the next start if need be. The sources are removed, then the
new files get their names.
"""

from collections.abc import Iterable

from kbroker.runtime.disk import Disk
from kbroker.storage import file_names
from kbroker.storage.log.batch_scan import BatchScan

# There need not be an index of aborted transactions.
NEW_SUFFIXES = (file_names.INDEX, file_names.TIME_INDEX, file_names.TXN_INDEX, file_names.LOG)


def promote(disk: Disk, directory: str, base_offset: int) -> None:
    """`.cleaned`, all synced, becomes `.swap`. The log comes last: it is the sign that the replacement counts."""
    for suffix in NEW_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if suffix != file_names.TXN_INDEX or disk.exists(path + file_names.CLEANED):
            disk.rename(path + file_names.CLEANED, path + file_names.SWAP)
    disk.sync_dir(directory)


def install(disk: Disk, directory: str, base_offset: int) -> None:
    """`.swap` gets its final name, when the sources are gone. The log comes last here as well."""
    for suffix in NEW_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if disk.exists(path + file_names.SWAP):
            disk.rename(path + file_names.SWAP, path)


def abandon(disk: Disk, directory: str, base_offset: int) -> None:
    """The sources have changed meanwhile: `.swap` files are removed, the log first, so that no start installs them."""
    for suffix in reversed(NEW_SUFFIXES):
        path = file_names.segment_file(directory, base_offset, suffix) + file_names.SWAP
        if disk.exists(path):
            disk.unlink(path)


def finish_swaps(disk: Disk, directory: str, listed: Iterable[str]) -> list[str]:
    """At a start: drop what was not complete, carry through what was. Gives what was done, a line each."""
    done = []
    sources = []
    swaps = []
    for name in listed:
        if name.endswith(file_names.CLEANED):
            disk.unlink(f"{directory}/{name}")
        elif name.endswith(file_names.LOG + file_names.SWAP):
            swaps.append(int(name[:20]))
        else:
            parsed = file_names.parse_segment_file(name)
            if parsed is not None and parsed[1] == file_names.LOG:
                sources.append(parsed[0])
    for base_offset in swaps:
        end = _end_of(
            disk, file_names.segment_file(directory, base_offset, file_names.LOG) + file_names.SWAP, base_offset
        )
        for source in sources:
            if base_offset <= source < end:
                _remove(disk, directory, source)
        disk.sync_dir(directory)
        install(disk, directory, base_offset)
        done.append(f"{directory}: compaction of offsets {base_offset} to {end - 1} was finished")
    for name in listed:
        # Indexes whose log had not come so far.
        if name.endswith(file_names.SWAP) and disk.exists(f"{directory}/{name}"):
            disk.unlink(f"{directory}/{name}")
    return done


def _end_of(disk: Disk, path: str, base_offset: int) -> int:
    file = disk.open(path, write=False)
    scan = BatchScan(file, 0, file.size(), base_offset, base_offset, check_crc=False)
    for _ in scan:
        pass
    return max(scan.next_offset, base_offset + 1)


def _remove(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in file_names.SEGMENT_SUFFIXES:
        path = file_names.segment_file(directory, base_offset, suffix)
        if disk.exists(path):
            disk.unlink(path)
