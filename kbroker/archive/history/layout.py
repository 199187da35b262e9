"""Which files of a table have which offsets and timestamps, and what the table covers (pure)."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from kbroker.archive.data_files import DataFile
from kbroker.archive.offset_ranges import OffsetRange, subtract_ranges
from kbroker.archive.topic_state import TopicState


class FileRange(NamedTuple):
    """A file and the offsets [first, last] that it may have."""

    first: int
    last: int
    to_ms: int  # the highest timestamp, rounded down
    path: str


class PartitionFiles:
    """The files of one partition by their first offsets. Their ranges may overlap."""

    def __init__(self, files: Iterable[FileRange]) -> None:
        self.files: Sequence[FileRange] = sorted(files)
        # Of each file: the highest offset and timestamp of it and of all files before it. They ascend.
        self._lasts = list(accumulate((file.last for file in self.files), max))
        self._times_ms = list(accumulate((file.to_ms for file in self.files), max))

    def with_offsets_from(self, offset: int) -> Iterator[FileRange]:
        """Iterate over the files that may have an offset of at least this one, by their first offsets."""
        for index in range(bisect_left(self._lasts, offset), len(self.files)):
            if self.files[index].last >= offset:
                yield self.files[index]

    def with_times_from(self, timestamp_ms: int) -> Iterator[FileRange]:
        """Iterate over the files that have a timestamp of at least this one, by their first offsets."""
        for index in range(bisect_left(self._times_ms, timestamp_ms), len(self.files)):
            if self.files[index].to_ms >= timestamp_ms:
                yield self.files[index]

    def next_offset(self, offset: int) -> int | None:
        """Return a lower bound of the offsets of the records after this one; None if there are none."""
        index = bisect_right(self.files, offset, key=lambda file: file.first)
        if index and self._lasts[index - 1] > offset:
            return offset + 1
        return self.files[index].first if index < len(self.files) else None


@dataclass(frozen=True)
class Layout:
    """A table as one snapshot of it says."""

    state: TopicState
    snapshot_id: int | None
    committed_only: bool
    partitions: Mapping[int, PartitionFiles] = field(default_factory=dict)

    def files_of(self, partition: int) -> PartitionFiles:
        return self.partitions.get(partition) or PartitionFiles(())

    def bounds(self) -> dict[int, OffsetRange]:
        """Return for each partition the lowest offset that the table covers, and the offset at which it continues."""
        result = {}
        for partition, end in sorted(self.state.resume_offsets().items()):
            gaps = [OffsetRange(gap.start, gap.end) for gap in self.state.gaps if gap.partition == partition]
            present = subtract_ranges(self.state.covered.get(partition, ()), gaps)
            result[partition] = OffsetRange(present[0].start if present else end, end)
        return result


def partition_files(files: Iterable[DataFile]) -> dict[int, PartitionFiles]:
    ranges: defaultdict[int, list[FileRange]] = defaultdict(list)
    for file in files:
        ranges[file.partition].append(FileRange(file.first, file.last, file.to_ms, file.path))
    return {partition: PartitionFiles(items) for partition, items in ranges.items()}
