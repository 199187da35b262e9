"""Decides which segments of a log have expired: by time, by size, by the log start offset."""

from collections.abc import Callable, Sequence

from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log.segment import LogSegment


def count_expired_segments(
    segments: Sequence[LogSegment],
    config: TopicConfig,
    now_ms: int,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
) -> int:
    """Return how many of the oldest segments may be deleted. All of them are below the high watermark.

    Segments below the log start offset are deleted with any cleanup.policy; time and size apply only to `delete`.
    """
    ends = [segment.base_offset for segment in segments[1:]]
    expired = sum(1 for end in ends if end <= min(log_start_offset, high_watermark))
    if not config.has_delete_policy:
        return expired
    ends.append(log_end_offset)

    def extend_while(start: int, is_expired: Callable[[LogSegment], bool]) -> int:
        count = start
        while count < len(segments) and ends[count] <= high_watermark and is_expired(segments[count]):
            if count == len(segments) - 1 and not segments[count].size:
                # An empty active segment has nothing to delete.
                break
            count += 1
        return count

    if config.retention_bytes >= 0:
        excess = sum(segment.size for segment in segments[expired:]) - config.retention_bytes

        def is_excess(segment: LogSegment) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        expired = extend_while(expired, is_excess)
    if config.retention_ms >= 0:
        expired = extend_while(expired, lambda segment: now_ms - segment.newest_timestamp() > config.retention_ms)
    return expired
