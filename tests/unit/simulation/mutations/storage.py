"""Mistakes in writing, recovering and reading logs."""

from collections.abc import Iterator
from contextlib import suppress
from errno import ENOSPC
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.replica.fetch import fetch_manager
from kbroker.replica.logs import log_cleaner, log_manager
from kbroker.replica.logs.partition_maintenance import PartitionMaintenance
from kbroker.simulation.scenarios.faults import Fault
from kbroker.storage import file_names
from kbroker.storage.cleaner import segment_swap
from kbroker.storage.log import log as log_module
from kbroker.storage.log import log_reads
from kbroker.storage.log.durability import LogDurability
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_state import DirectorySync
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentIndexes
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.recovery import open_log as recovery
from kbroker.storage.recovery import segment_loading as loading
from protocol.errors import ErrorCode
from tests.unit.simulation.mutations.mutation import INVARIANT, Without, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import (
    NEVER,
    Shape,
    blink,
    blink_between_swaps,
    blink_while_syncs_are_slow,
    broker,
    compacted,
    crash,
    die_in_a_swap,
    one_partition,
    only,
    short,
    start_without_room,
    syncs_fail,
    topics,
    unheard_stop,
)

# Recovery.


def unsynced_segments(fault: Fault, **values: Any) -> Shape:
    """One partition with many small segments, which only rolls sync."""
    return topics(
        broker(
            one_partition(only(fault, members=0, producers=3, pause_between_sends_s=0.01, **values)),
            log_flush_offset_checkpoint_interval_ms="60000",
        ),
        internal_segment_bytes="1024",
        flush_messages=str(NEVER),
        flush_ms=str(NEVER),
    )


@mutation("rot", [INVARIANT, "corrupt read"], only("rot", seconds=8.0, producers=3, members=0))
@replaces(recovery, "recover_segment")
def recovery_trusts_every_crc(real: Any, *arguments: Any, **named: Any) -> Any:
    """After a crash the CRCs of batches are not checked."""
    return real(*arguments, **named | {"check_crc": False})


@mutation(
    "crash", [INVARIANT, "duplicate"], only(crash, producers=3, members=0, pause_between_sends_s=0.01), first_seed=2
)
@replaces(log_manager, "open_log")
def recovery_forgets_producers(real: Any, *arguments: Any, **named: Any) -> Log:
    """Producer state is lost when the broker stops."""
    log: Log = real(*arguments, **named)
    log.producers = ProducerStateManager()
    return log


@mutation("crash", [INVARIANT, "duplicate"], only(unheard_stop, producers=3, members=0, pause_between_sends_s=0.01))
@replaces(ProducerStateManager, "from_snapshot")
def recovery_skips_the_snapshot(_: Any, *arguments: Any) -> Any:
    """A producer snapshot that was not read counts as read."""
    return ProducerStateManager()


@mutation("power", [INVARIANT], unsynced_segments(blink_while_syncs_are_slow))
@replaces(recovery.LogLoader, "__init__")
def recovery_keeps_segments_after_a_gap(real: Any, loader: Any, *arguments: Any, gapless: bool) -> Any:
    """Recovery keeps segments after a gap in the log."""
    return real(loader, *arguments, gapless=False)


@mutation("power", [INVARIANT], unsynced_segments(blink_while_syncs_are_slow, seconds=15.0), first_seed=18)
@replaces(recovery.LogLoader, "_remove")
def dropped_segments_come_back(_: Any, loader: recovery.LogLoader, segments: list[LogSegment], reason: str) -> None:
    """The directory is not synced after recovery removed segments."""
    for segment in segments:
        loader._loaded.snapshots.remove([segment.base_offset])
        segment.delete_blocking()


@mutation("power", [INVARIANT], only(blink, members=0))
@replaces(recovery, "recover_segment")
def recovery_leaves_the_torn_tail(real: Any, segment: Any, *arguments: Any, **named: Any) -> Any:
    """A torn tail stays in the file."""
    file, segment.file = segment.file, Without(segment.file, "truncate")
    loaded = real(segment, *arguments, **named)
    segment.file = file
    return loaded


@mutation(
    "power", ["lost write", "unreadable at the end"], topics(only(blink, members=0), flush_messages="2"), first_seed=1
)
def recovery_cuts_one_batch_too_many(patch: pytest.MonkeyPatch) -> None:
    """With a torn batch, the batch before it is truncated too."""

    class BatchScan(loading.BatchScan):
        def __iter__(self) -> Iterator[Any]:
            last = None
            for position, header in super().__iter__():
                last = position, header
                yield position, header
            if self.fault is not None and last is not None and self._check_crc:
                self.position, self.next_offset = last[0], last[1].base_offset

    patch.setattr(loading, "BatchScan", BatchScan)


@mutation("power", [INVARIANT], only(unheard_stop, crash, members=0, producers=3), first_seed=2)
def clean_marker_is_kept(patch: pytest.MonkeyPatch) -> None:
    """The clean-shutdown marker is kept for later starts."""

    def consume(disk: Any, data_dir: str) -> bool:
        return bool(disk.exists(f"{data_dir}/{file_names.CLEAN_SHUTDOWN}"))

    patch.setattr("kbroker.replica.logs.checkpoints.consume_clean_shutdown_file", consume)


@mutation("power", [INVARIANT], only("restart"))
def clean_marker_of_dirty_logs(patch: pytest.MonkeyPatch) -> None:
    """A stop writes the clean-shutdown marker without a sync."""
    closing: set[LogDurability] = set()

    def close(real: Any, log: LogDurability, *arguments: Any) -> None:
        closing.add(log)
        real(log, *arguments)

    def checkpoint_job(real: Any, log: LogDurability, *arguments: Any, **named: Any) -> Any:
        return (lambda: []) if log in closing else real(log, *arguments, **named)

    wrap(patch, LogDurability, "close", close)
    wrap(patch, LogDurability, "_checkpoint_job", checkpoint_job)


# Syncs.


@mutation("power", [INVARIANT])
@replaces(LogSegment, "sync_blocking")
def sync_does_nothing(_: Any, segment: Any) -> None:
    """A sync does nothing, and the recovery point moves."""


@mutation("durable", [INVARIANT], topics(only(members=0, producers=3), internal_segment_bytes="4096"), first_seed=1)
@replaces(DirectorySync, "sync_blocking")
def file_names_are_not_synced(_: Any, directory: Any) -> None:
    """Names of new files are not synced."""


@mutation("disk", [INVARIANT], topics(only(syncs_fail), flush_messages="2"))
@replaces(LogSegment, "sync_blocking")
def failed_sync_is_repeated(real: Any, segment: LogSegment) -> None:
    """A failed sync is repeated as if it could succeed."""
    for _ in range(5):
        with suppress(OSError):
            return real(segment)
    return real(segment)


@mutation("disk", ["LivenessError"], topics(only("out_of_files"), flush_messages="2"))
def shortage_is_a_failing_disk(patch: pytest.MonkeyPatch) -> None:
    """Missing file descriptors count as a disk failure."""
    patch.setattr("kbroker.storage.log.log_health.is_shortage", lambda error: error.errno == ENOSPC)
    patch.setattr("kbroker.storage.log.durability.is_unbegun_sync", lambda error: False)


@mutation("crash", [INVARIANT], only(start_without_room, members=0), first_seed=6)
@replaces(PartitionMaintenance, "suspend_appends")
def appends_without_new_epochs(_: Any, self: Any, partition: Any) -> None:
    """A broker that starts on a full disk appends without new leader epochs."""


# Appends.


@mutation("disk", [INVARIANT], only("full"), first_seed=4)
@replaces(Log, "_cut_back")
def partial_write_is_not_cut_back(_: Any, log: Log, error: OSError) -> KafkaError:
    """A partial batch on a full disk is kept, and the next batch is appended after it."""
    log.health.full = True
    log._update_limits()
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))


@mutation("disk", [INVARIANT], topics(only("leftovers"), internal_segment_bytes="2048"))
@replaces(LogSegment, "create_file")
def leftover_file_is_appended_to(_: Any, segment: LogSegment) -> None:
    """A new segment keeps the old content of its file."""
    segment.file = segment.disk.open(segment.path(), create=True)


# Reads.


@mutation(
    "disk",
    ["unsent value", "inconsistent offsets", "corrupt read", "AssertionError", "skipped records"],
    only("slow_disk", "restart"),
    first_seed=1,
)
@replaces(fetch_manager, "read_cold_blocking")
def cold_reads_are_mixed_up(real: Any, cold: Any, *rest: Any) -> Any:
    """Results of cold reads of two partitions are exchanged."""
    return real(cold, *rest)[::-1]


@mutation(
    "crash", ["skipped records", "lost write"], topics(only("restart", "kill"), index_interval_bytes="0"), slow=True
)
@replaces(SegmentIndexes, "entry_at_offset")
def index_lookup_off_by_one(real: Any, own: Any, relative: Any, wait: Any) -> Any:
    """An index lookup uses the entry of the next offset."""
    return real(own, relative + 1, wait)


@mutation("durable", [INVARIANT, "unflushed read"])
@replaces(log_reads, "_read_batches")
def reads_pass_the_high_watermark(
    real: Any, log: Log, offset: int, max_bytes: int, max_offset: int, *flags: bool
) -> Any:
    """Reads go on above the high watermark."""
    return real(log, offset, max_bytes, log.log_end_offset, *flags)


# Deletion.


@mutation("calm", ["lost write"], first_seed=2)
@replaces(log_module, "count_expired_segments")
def retention_deletes_one_too_many(real: Any, segments: Any, *arguments: Any) -> int:
    """Retention removes one segment too many."""
    return min(real(segments, *arguments) + 1, len(segments) - 1)


@mutation("calm", ["lost write"], short(deleters=2))
@replaces(Log, "delete_records")
def delete_records_deletes_one_too_many(real: Any, log: Any, offset: Any) -> Any:
    """DeleteRecords deletes one record too many."""
    return real(log, offset + 1)


@mutation(
    "crash",
    ["deleted record", INVARIANT],
    broker(only(crash, deleters=2, members=0), log_retention_check_interval_ms="300000"),
)
@replaces(log_manager, "open_log")
def log_start_is_forgotten(real: Any, *arguments: Any, log_start_offset: int, **named: Any) -> Any:
    """Deleted records are back after a crash."""
    return real(*arguments, **named)


# Compaction.


class _SyncedLog:
    """A log whose records all count as synced."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        is_synced = name in ("recovery_point", "durable_recovery_point")
        return getattr(self._log, "log_end_offset" if is_synced else name)


@mutation(
    "compaction",
    ["lost write", "skipped records"],
    compacted(
        one_partition(only(blink_between_swaps, members=0, producers=2, pause_between_sends_s=0.01)),
        keys=100,
    ),
    first_seed=1,
)
@replaces(log_cleaner, "find_log_to_clean")
def unsynced_segments_are_compacted(real: Any, log: Any, *arguments: Any) -> Any:
    """Segments that are not synced are compacted."""
    return real(_SyncedLog(log), *arguments)


@mutation(
    "compaction",
    [INVARIANT, "lost write", "inconsistent offsets"],
    compacted(one_partition(only(die_in_a_swap, seconds=6.0, members=0, producers=3)), keys=100),
)
@replaces(segment_swap, "_remove_segment")
def swap_leaves_sources(real: Any, disk: Any, directory: str, base_offset: int) -> None:
    """A start removes only the first of the segments that a compacted segment replaces."""
    if disk.exists(file_names.segment_file(directory, base_offset, file_names.LOG) + file_names.SWAP):
        real(disk, directory, base_offset)
