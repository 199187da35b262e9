"""The gaps that deleting rows leaves (pure).

A gap may also span offsets that never had a record, so that the state stays small: each commit writes it. It never
spans a record that is still there.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange, merge_ranges, subtract_ranges
from kbroker.archive.topic_state import Gap, TopicState

EXPIRED, ERASED, _RETENTION = "expired", "erased", "retention"


def ranges_of_files(removed: Iterable[DataFile], kept: Iterable[DataFile]) -> dict[int, tuple[OffsetRange, ...]]:
    """Return the offsets of removed files by partition, with what is between them and in no file that is kept."""
    removed_ranges, kept_ranges = _by_partition(removed), _by_partition(kept)
    result = {}
    for partition, ranges in removed_ranges.items():
        span = OffsetRange(ranges[0].start, max(each.end for each in ranges))
        result[partition] = merge_ranges([*ranges, *subtract_ranges([span], kept_ranges.get(partition, ()))])
    return result


def _by_partition(files: Iterable[DataFile]) -> dict[int, tuple[OffsetRange, ...]]:
    result: dict[int, list[OffsetRange]] = defaultdict(list)
    for file in files:
        result[file.partition].append(file.offsets)
    return {partition: merge_ranges(ranges) for partition, ranges in result.items()}


def with_gaps(state: TopicState, reason: str, added: Mapping[int, Iterable[OffsetRange]]) -> list[Gap]:
    """Return the gaps of a state with further offsets, each with one reason.

    Records that were never archived stay recorded as such; other reasons are replaced by the latest.
    """
    by_reason: dict[tuple[int, str], tuple[OffsetRange, ...]] = {}
    for gap in state.gaps:
        key = gap.partition, gap.reason
        by_reason[key] = (*by_reason.get(key, ()), OffsetRange(gap.start, gap.end))
    for partition, ranges in added.items():
        new = subtract_ranges(ranges, by_reason.get((partition, _RETENTION), ()))
        for other in [key for key in by_reason if key[0] == partition and key[1] not in (reason, _RETENTION)]:
            by_reason[other] = subtract_ranges(by_reason[other], new)
        by_reason[partition, reason] = merge_ranges([*by_reason.get((partition, reason), ()), *new])
    return sorted(
        Gap(partition, start, end, why)
        for (partition, why), ranges in by_reason.items()
        for start, end in merge_ranges(ranges)
    )
