"""Checks of what a table's metadata says: its state, its files, and both against each other (pure)."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kbroker.archive.data_files import PERIOD_US, DataFile
from kbroker.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.archive.topic_state import TopicState
from kbroker.archive.verification.findings import Finding, VerificationScope, difference, note
from kbroker.common import TopicPartition

# Why records are not in the table although their offsets are covered.
GAP_TEXTS = {
    "lost": "damaged in the archive, and no longer in the log when it was repaired",
    "expired": "deleted from the archive because they were too old",
    "erased": "erased from the archive by their key",
}


def check_state(topic: str, state: TopicState, scope: VerificationScope) -> Iterator[Finding]:
    """Find contradictions in the covered offsets, and holes without a gap; report gaps as notes."""
    for partition, covered in sorted(state.covered.items()):
        tp = TopicPartition(topic, partition)
        if merge_ranges(covered) != covered:
            yield difference("metadata", "its covered offsets are not ascending", tp, offsets=covered)
            continue
        between = [OffsetRange(previous.end, following.start) for previous, following in pairwise(covered)]
        gaps = [OffsetRange(gap.start, gap.end) for gap in state.gaps if gap.partition == partition]
        if holes := scope.limit(subtract_ranges(between, gaps)):
            yield difference("hole", "no commit covers them, and no gap explains why", tp, offsets=holes)
    by_reason: dict[tuple[int, str], list[OffsetRange]] = defaultdict(list)
    for gap in state.gaps:
        by_reason[gap.partition, gap.reason].append(OffsetRange(gap.start, gap.end))
    for (partition, reason), ranges in sorted(by_reason.items()):
        if reason in GAP_TEXTS and (offsets := scope.limit(ranges)):
            yield note(reason, GAP_TEXTS[reason], TopicPartition(topic, partition), offsets=offsets)


def check_files(topic: str, state: TopicState, files: Sequence[DataFile], period: str) -> Iterator[Finding]:
    """Compare what the metadata says of each file with its partition values, and with the covered offsets."""
    for path, count in Counter(file.path for file in files).items():
        if count > 1:
            yield difference("doubled", f"the table lists the file {count} times", file=path, topic=topic)
    period_ms = PERIOD_US[period] // 1000
    for file in files:
        tp = TopicPartition(topic, file.partition)
        if file.sha256 is None:
            text = "another program has written it; its name does not have the checksum of its content"
            yield note("no checksum", text, tp, file.path, [file.offsets])
        count = file.last - file.first + 1
        uncovered = subtract_ranges([file.offsets], state.covered.get(file.partition, ()))
        if not 0 < file.rows <= count:
            yield difference("layout", f"the table claims {file.rows} rows", tp, file.path, [file.offsets])
        elif uncovered and file.rows > count - sum(end - start for start, end in uncovered):
            yield difference("layout", "the table claims rows that no commit covers", tp, file.path, uncovered)
        value = file.entry.partition[1]
        if value != file.partition:
            yield difference("layout", f"it is listed as a file of partition {value}", tp, file.path, [file.offsets])
        if not file.from_ms // period_ms == file.to_ms // period_ms == file.period:
            text = f"it is listed as a file of another {period} than that of its timestamps"
            yield difference("layout", text, tp, file.path, [file.offsets])


def uncovered_offsets(state: TopicState, partition: int, offsets: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets at which the table must not have rows."""
    erased = [
        OffsetRange(gap.start, gap.end) for gap in state.gaps if gap.partition == partition and gap.reason == "erased"
    ]
    covered = state.covered.get(partition, ())
    if not erased and any(start <= offsets[0].start and offsets[-1].end <= end for start, end in covered):
        return ()
    return merge_ranges([*subtract_ranges(offsets, covered), *intersect_ranges(offsets, erased)])


def gap_offsets(state: TopicState, partition: int) -> tuple[OffsetRange, ...]:
    """Return the offsets whose records are known not to be in the table."""
    return merge_ranges(OffsetRange(gap.start, gap.end) for gap in state.gaps if gap.partition == partition)
