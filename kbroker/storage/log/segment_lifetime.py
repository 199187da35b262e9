"""Decides when a log rolls to a new segment: size, time, relative offsets, a full index; and which segments expire.

The limits of the active segment are computed once per segment and config change, so that an append only compares four
numbers. An append that exceeds one of them is checked more closely.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from kbroker.storage.log.segment import LogSegment

NEVER = 1 << 62
# Smaller than any timestamp: the first batch of a segment is always checked, since the time limit begins with it.
_BEFORE_ANY_TIMESTAMP = -2
# A size limit that every append exceeds, so that every append is checked.
CHECK_ALL = -1


class RollLimits(NamedTuple):
    """The limits of the active segment: size in bytes, max timestamp, last offset, wall-clock time."""

    size: int
    max_timestamp: int
    last_offset: int
    now_ms: int

    def is_reached(self, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Return whether the log must roll before this append for a reason other than size."""
        return max_timestamp > self.max_timestamp or last_offset > self.last_offset or now_ms > self.now_ms

    def is_time_over(self, now_ms: int) -> bool:
        return now_ms > min(self.max_timestamp, self.now_ms)


def compute_limits(config: TopicConfig, active: LogSegment, jitter_ms: int) -> RollLimits:
    wait_ms = _max_segment_ms(config) - jitter_ms
    max_timestamp = now_ms = NEVER
    first_timestamp = active.first_timestamp
    if not active.size and first_timestamp is None:
        max_timestamp = _BEFORE_ANY_TIMESTAMP
    elif first_timestamp is not None and first_timestamp >= 0:
        max_timestamp = first_timestamp + wait_ms
    else:
        # The first batch of the segment has no timestamp.
        now_ms = active.created_ms + wait_ms
    return _limits(config.segment_bytes, max_timestamp, active.base_offset + MAX_RELATIVE_OFFSET, now_ms)


# Logs without records share their limits.
_limits = lru_cache(256)(RollLimits)


def choose_jitter_ms(config: TopicConfig, random: Random) -> int:
    """Return how much earlier a segment rolls, so that not all logs roll at once (segment.jitter.ms)."""
    jitter_ms = min(config.segment_jitter_ms, _max_segment_ms(config))
    return random.randrange(jitter_ms) if jitter_ms > 0 else 0


def _max_segment_ms(config: TopicConfig) -> int:
    """Return the time limit of a segment. A compacted log rolls after max.compaction.lag.ms at the latest (KIP-354)."""
    return min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms


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
