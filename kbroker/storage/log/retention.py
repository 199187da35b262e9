"""Which segments may go, and their going: by time, by size, by the log start offset."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log.segment import LogSegment

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log


def enforce(log: "Log", now_ms: int, high_watermark: int) -> int:
    """Remove the segments that may go; gives their number. The active one is closed first if it is among them."""
    if log.offline is not None:
        return 0
    count = expired(log.segments, log.config, now_ms, log.log_start_offset, log.log_end_offset, high_watermark)
    if count and count == len(log.segments):
        try:
            log.roll(now_ms)
        except KafkaError:
            # A full disk: what is closed already can make room.
            count -= 1
    if not count:
        return 0
    gone, kept = log.segments[:count], log.segments[count:]
    for segment in gone:
        segment.retired = True
    log.segments = kept
    log.set_log_start(kept[0].base_offset)
    log.snapshots.difference_update(segment.base_offset for segment in gone)
    discard(log, gone)
    return count


def expired(
    segments: list[LogSegment],
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> int:
    """How many of the oldest segments may go: only whole ones, and only what is below the high watermark.

    Segments below the log start offset go whatever the cleanup policy is; time and size count for `delete` only.
    """
    count = len(segments)
    ends = [segment.base_offset for segment in segments[1:]]
    gone = sum(1 for end in ends if end <= min(log_start_offset, high_watermark))
    if not config.has_delete_policy:
        return gone
    ends.append(log_end_offset)

    def while_true(start: int, predicate: Callable[[LogSegment], bool]) -> int:
        slot = start
        while slot < count and ends[slot] <= high_watermark and predicate(segments[slot]):
            # An empty active segment has nothing to remove.
            if slot == count - 1 and not segments[slot].size:
                break
            slot += 1
        return slot

    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[gone:]) - config.retention_bytes

        def too_much(segment: LogSegment) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        gone = while_true(gone, too_much)
    if config.retention_ms >= 0:
        gone = while_true(gone, lambda segment: now_ms - segment.largest_timestamp() > config.retention_ms)
    return gone


def discard(log: "Log", segments: list[LogSegment]) -> None:
    """Rename the files of segments that have left the log, and unlink them after file.delete.delay.ms."""

    def rename() -> list[str]:
        return [path for segment in segments for path in segment.rename_deleted()]

    log.chores.add(rename, lambda paths: unlink_later(log, paths))


def unlink_later(log: "Log", paths: list[str]) -> None:
    """Unlink renamed files after file.delete.delay.ms."""
    disk = log.disk

    def unlink() -> None:
        for path in paths:
            try:
                disk.unlink(path)
            except OSError:
                # Gone with the partition's directory; or it stays, and the next start removes it.
                continue

    log.background(unlink, _ignore, log.config.file_delete_delay_ms)


def _ignore(_: object) -> None:
    pass
