"""Where a share group begins in a partition that it has no state of: share.auto.offset.reset."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kbroker.queues.topic_filters import visible_records
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition

EARLIEST = "earliest"
LATEST = "latest"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1000)


def find_start_offset(partition: Partition, reset: str, end_offset: int, now_ms: int) -> int:
    """Return the first offset to deliver. Called in a thread. Raises KafkaError.

    `reset`: earliest, latest, or by_duration: with a duration of ISO 8601, before `now_ms` (the wall clock).
    """
    log = partition.log
    if reset == EARLIEST:
        return log.log_start_offset
    if reset == LATEST:
        return end_offset
    timestamp = now_ms - duration_ms(reset.partition(":")[2])
    found = find_offset_for_timestamp(log, max(timestamp, 0), end_offset, visible_records(log.config))
    return found[0] if found is not None and found[0] < end_offset else end_offset


def duration_ms(text: str) -> int:
    """Return an ISO 8601 duration of days, hours, minutes and seconds, which the config's validator has accepted."""
    found = _DURATION.fullmatch(text)
    parts = () if found is None else found.groups()
    return sum(int(float(part) * unit) for part, unit in zip(parts, _UNITS_MS, strict=False) if part)
