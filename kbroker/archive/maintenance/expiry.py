"""Deletes the records of old days from an archive: whole files, and nothing that is younger."""

from dataclasses import dataclass, replace

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import PERIOD_US, DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.compaction import replace_files, require_own
from kbroker.archive.maintenance.gaps import EXPIRED, ranges_of_files, with_gaps
from kbroker.archive.topic_state import TopicState


@dataclass
class ExpiryResult:
    """What an expiry removed, of all topics. `kbroker archive expire --json` prints these fields."""

    topics: int = 0  # that had old records
    files: int = 0
    rows: int = 0
    bytes: int = 0
    deleted: int = 0  # files of any kind that were deleted; the others follow when their readers have had time


def expired_files(table: ArchiveTable, before_ms: int) -> list[DataFile]:
    """Return the files of periods (days or hours, in UTC) that end at or before a time."""
    period_ms = PERIOD_US[table.write_target().period] // 1000
    return [file for file in table.files() if (file.period + 1) * period_ms <= before_ms]


def expire_topic(table: ArchiveTable, before_ms: int, result: ExpiryResult) -> None:
    """Remove the records of periods that end at or before a time, and add what was done to `result`.

    The files are deleted when no snapshot has them any more. Raises ArchiveError.
    """
    require_own(table)
    while old := expired_files(table, before_ms):
        paths = {file.path for file in old}

        def change(state: TopicState, old: list[DataFile] = old, paths: set[str] = paths) -> TopicState:
            kept = [file for file in table.files() if file.path not in paths]
            return replace(state, gaps=tuple(with_gaps(state, EXPIRED, ranges_of_files(old, kept))))

        # False: a compaction has replaced some of the files meanwhile.
        if replace_files(table, "expire", old, [], change):
            result.topics += 1
            result.files += len(old)
            result.rows += sum(file.rows for file in old)
            result.bytes += sum(file.size for file in old)
            if expired_files(table, before_ms):
                raise ArchiveError(f"{table.location}: another process adds records of the time that is to expire")
            return
