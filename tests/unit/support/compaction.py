"""Compaction of a log in a test, without a broker and in the same process."""

from random import Random
from typing import Any

from kbroker.storage.cleaner.cleaner import run
from kbroker.storage.cleaner.compaction_plan import (
    CompactionPlan,
    CompactionResult,
    decode_result,
    encode_plan,
    find_aborted_later_blocking,
    find_log_to_clean,
)
from kbroker.storage.cleaner.segment_swap import install_result
from kbroker.storage.log.log import Log
from protocol.records.batch import build_batch, iter_batch_records, iter_headers
from tests.unit.support.log_lab import NOW, append, content

DAY = 24 * 3600 * 1000
COMPACT: dict[str, Any] = {"cleanup_policy": ("compact",), "segment_bytes": 4000, "delete_retention_ms": DAY}
MAP_BYTES = 1 << 20

# (timestamp, key, value) by offset.
Records = dict[int, tuple[int, bytes | None, bytes | None]]


def records(log: Log) -> Records:
    """Return all records of a log."""
    by_offset: Records = {}
    data = content(log)
    for position, header in iter_headers(data):
        for record in iter_batch_records(data[position : position + header.size], header):
            offset = header.base_offset + record.offset_delta
            assert offset not in by_offset
            by_offset[offset] = (record.timestamp, record.key, record.value)
    assert list(by_offset) == sorted(by_offset)
    return by_offset


def write(log: Log, random: Random, count: int, keys: int = 20, codec: int = 0) -> None:
    """Append batches of random records, some of them tombstones."""
    for n in range(count):
        new = [
            (
                NOW + n,
                b"key-%d" % random.randrange(keys),
                None if random.random() < 0.2 else random.randbytes(random.randrange(30)),
                ((b"h", b"v"),) if random.random() < 0.2 else (),
            )
            for _ in range(random.randrange(1, 6))
        ]
        append(log, build_batch(new, codec=codec))


class StoppedClock:
    """A clock that always shows the same time."""

    def now_ms(self) -> int:
        return NOW

    def mono_ms(self) -> int:
        return 0

    def mono_ns(self) -> int:
        return 0


class CompactionFailed(Exception):
    pass


def make_plan_for(
    log: Log, now_ms: int = NOW, limit: int | None = None, map_bytes: int = MAP_BYTES
) -> CompactionPlan | None:
    cleanable = find_log_to_clean(log, now_ms, log.log_end_offset if limit is None else limit)
    if cleanable is None:
        return None
    later = find_aborted_later_blocking(log, cleanable)
    config = log.config
    return CompactionPlan(
        log.directory, cleanable.sources, cleanable.first_dirty_offset, now_ms, config.delete_retention_ms,
        config.segment_bytes, config.index_interval_bytes, map_bytes, 1 << 12, None, later, log.producers.freeze(),
    )  # fmt: skip


def run_plan(log: Log, plan: CompactionPlan) -> CompactionResult:
    """Execute a plan like the process of the cleaner. Raises CompactionFailed."""
    result = decode_result(run(log.disk, StoppedClock(), never_sleep, encode_plan(plan)))
    if result.failure is not None:
        raise CompactionFailed(result.failure)
    return result


def never_sleep(seconds: float) -> None:
    raise AssertionError("there is no rate limit")


def compact(
    log: Log, now_ms: int = NOW, ratio: float = 0.0, map_bytes: int = MAP_BYTES, limit: int | None = None
) -> bool:
    """Compact a log like the broker; returns False if there is nothing to compact."""
    cleanable = find_log_to_clean(log, now_ms, log.log_end_offset if limit is None else limit)
    if cleanable is None or not cleanable.needs_cleaning(ratio):
        return False
    plan = make_plan_for(log, now_ms, limit, map_bytes=map_bytes)
    assert plan is not None
    install(log, run_plan(log, plan))
    return True


def install(log: Log, result: CompactionResult) -> None:
    install_result(log, result, lambda: None)
