"""When the active segment is closed and another begins: by size, by time, by offsets, by its indexes.

The limits are worked out once, so that an append compares four numbers; only beyond one of them it takes a second
look here.
"""

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.storage.log import maintenance
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from kbroker.storage.log.segment import LogSegment
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log

NEVER = 1 << 62
# No timestamp is as low: the first batch of a segment always takes the second look.
AT_ONCE = -2


def prepare(log: "Log", size: int, timestamp: int, last_offset: int, now_ms: int) -> LogSegment:
    """The uncommon cases before an append: refuse it, close the segment, note the first batch's timestamp."""
    if log.offline is not None or log.full:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline or refusal(log))
    if size > log.config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {size} bytes exceeds segment.bytes, {log.config.segment_bytes}",
        )
    active = log.active
    if active.size and (
        active.size + size > log.config.segment_bytes
        or timestamp > log.roll_timestamp
        or last_offset > log.roll_offset
        or now_ms > log.roll_now
        or log.index_full
    ):
        roll(log, now_ms)
    if not log.active.size:
        log.active.first_timestamp = timestamp
        set_limits(log)
    return log.active


def refusal(log: "Log") -> str:
    """Why a log that is `full` refuses appends."""
    return "the file system is read-only" if log.read_only else "no space left on the disk"


def roll(log: "Log", now_ms: int) -> None:
    """Close the active segment, which is not empty, and begin another."""
    old, base = log.active, log.log_end_offset
    segment = LogSegment(log.disk, log.directory, base, now_ms)
    try:
        segment.file = log.disk.open(segment.path(), create=True)
        if segment.file.size():
            segment.file.truncate(0)
    except OSError as error:
        raise log.cut_back(error) from error
    old.close_indexes(base)
    log.files_created += 1
    log.segments = [*log.segments, segment]
    log.tail = (segment, [], [])
    use(log, segment)
    maintenance.finish_segment(log, old, base)


def use(log: "Log", segment: LogSegment) -> None:
    """Make this the active segment."""
    log.active = segment
    log.index_full = False
    jitter_ms = min(log.config.segment_jitter_ms, _longest_ms(log.config))
    log.jitter_ms = log.random.randrange(jitter_ms) if jitter_ms > 0 else 0
    set_limits(log)


def set_limits(log: "Log") -> None:
    """Work out up to where an append needs no second look."""
    config, active = log.config, log.active
    log.index_interval = config.index_interval_bytes
    refuse = log.offline is not None or log.full or log.index_full
    log.roll_size = -1 if refuse else config.segment_bytes
    log.roll_offset = active.base_offset + MAX_RELATIVE_OFFSET
    log.roll_now = log.roll_timestamp = NEVER
    wait_ms = _longest_ms(config) - log.jitter_ms
    first = active.first_timestamp
    if not active.size and first is None:
        log.roll_timestamp = AT_ONCE
    elif first is not None and first >= 0:
        log.roll_timestamp = first + wait_ms
    else:
        log.roll_now = active.created_ms + wait_ms


def _longest_ms(config: TopicConfig) -> int:
    """How long a segment is written at most: of a compacted log no longer than max.compaction.lag.ms (KIP-354)."""
    return min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms
