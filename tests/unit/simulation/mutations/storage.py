"""Mistakes in writing, recovering and reading logs."""

from collections.abc import Iterator
from errno import ENOSPC
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.replica.fetch import fetch_manager, partition_reads
from kbroker.replica.logs import log_cleaner_manager
from kbroker.replica.logs.partition_maintenance import PartitionMaintenance
from kbroker.simulation.scenarios.faults import Fault
from kbroker.storage import file_names
from kbroker.storage.cleaner import segment_swap
from kbroker.storage.log import log as log_module
from kbroker.storage.log.durability import DirectorySync
from kbroker.storage.log.log import Log
from kbroker.storage.log.reading import log_reads
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentIndexes
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.recovery import open_log as recovery
from kbroker.storage.recovery import segment_loading as loading
from protocol.errors import ErrorCode
from tests.unit.simulation.mutations.mutation import mutation
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

INVARIANT = "BrokenInvariant"


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


@mutation(
    "After a crash the CRCs of batches are not checked.",
    scenario="rot",
    signs=(INVARIANT, "corrupt read"),
    shape=only("rot", seconds=8.0, producers=3, members=0),
)
def recovery_trusts_every_crc(patch: pytest.MonkeyPatch) -> None:
    real = recovery.recover_segment

    def recover_segment(*arguments: Any, check_crc: bool, **named: Any) -> loading.RecoveredSegment:
        return real(*arguments, check_crc=False, **named)

    patch.setattr(recovery, "recover_segment", recover_segment)


@mutation(
    "Producer state is lost when the broker stops.",
    scenario="crash",
    signs=(INVARIANT, "duplicate"),
    shape=only(crash, producers=3, members=0, pause_between_sends_s=0.01),
    first_seed=1,
)
def recovery_forgets_producers(patch: pytest.MonkeyPatch) -> None:
    real = recovery.open_log

    def open_log(*arguments: Any, **named: Any) -> Log:
        log = real(*arguments, **named)
        log.producers = ProducerStateManager()
        return log

    patch.setattr("kbroker.replica.logs.log_manager.open_log", open_log)


@mutation(
    "A producer snapshot that was not read counts as read.",
    scenario="crash",
    signs=(INVARIANT, "duplicate"),
    shape=only(unheard_stop, producers=3, members=0, pause_between_sends_s=0.01),
)
def recovery_skips_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    def from_snapshot(data: bytes, end_offset: int | None = None) -> ProducerStateManager:
        return ProducerStateManager()

    patch.setattr(ProducerStateManager, "from_snapshot", from_snapshot)


@mutation(
    "Recovery keeps segments after a gap in the log.",
    scenario="power",
    signs=(INVARIANT,),
    shape=unsynced_segments(blink_while_syncs_are_slow),
)
def recovery_keeps_segments_after_a_gap(patch: pytest.MonkeyPatch) -> None:
    real = recovery.LogLoader.__init__

    def init(loader: recovery.LogLoader, loaded: Any, now_ms: int, clean: bool, gapless: bool) -> None:
        real(loader, loaded, now_ms, clean, False)

    patch.setattr(recovery.LogLoader, "__init__", init)


@mutation(
    "The directory is not synced after recovery removed segments.",
    scenario="power",
    signs=(INVARIANT,),
    shape=unsynced_segments(blink_while_syncs_are_slow),
)
def dropped_segments_come_back(patch: pytest.MonkeyPatch) -> None:
    def remove(loader: recovery.LogLoader, segments: list[LogSegment], reason: str) -> None:
        for segment in segments:
            loader._loaded.snapshots.forget([segment.base_offset])
            recovery.delete_now_blocking(segment)

    patch.setattr(recovery.LogLoader, "_remove", remove)


class _Uncut:
    """A file that ignores truncation."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def truncate(self, size: int) -> None:
        pass


@mutation("A torn tail stays in the file.", scenario="power", signs=(INVARIANT,), shape=only(blink, members=0))
def recovery_leaves_the_torn_tail(patch: pytest.MonkeyPatch) -> None:
    real = recovery.recover_segment

    def recover_segment(segment: Any, *arguments: Any, **named: Any) -> loading.RecoveredSegment:
        segment.file = _Uncut(segment.file)
        loaded = real(segment, *arguments, **named)
        segment.file = segment.file._file
        return loaded

    patch.setattr(recovery, "recover_segment", recover_segment)


@mutation(
    "With a torn batch, the batch before it is truncated too.",
    scenario="power",
    signs=("lost write", "unreadable at the end"),
    shape=topics(only(blink, members=0), flush_messages="2"),
    first_seed=1,
)
def recovery_cuts_one_batch_too_many(patch: pytest.MonkeyPatch) -> None:
    class BatchScan(loading.BatchScan):
        def __iter__(self) -> Iterator[Any]:
            last = None
            for position, header in super().__iter__():
                last = position, header
                yield position, header
            if self.fault is not None and last is not None and self._check_crc:
                self.position, self.next_offset = last[0], last[1].base_offset

    patch.setattr(loading, "BatchScan", BatchScan)


@mutation(
    "The clean-shutdown marker is kept for later starts.",
    scenario="power",
    signs=(INVARIANT,),
    shape=only(unheard_stop, crash, members=0, producers=3),
    first_seed=2,
)
def clean_marker_is_kept(patch: pytest.MonkeyPatch) -> None:
    def take(disk: Any, data_dir: str) -> bool:
        return bool(disk.exists(f"{data_dir}/{file_names.CLEAN_SHUTDOWN}"))

    patch.setattr("kbroker.replica.logs.checkpoints.consume_clean_shutdown_file", take)


@mutation(
    "A stop writes the clean-shutdown marker without a sync.",
    scenario="power",
    signs=(INVARIANT,),
    shape=only("restart"),
)
def clean_marker_of_dirty_logs(patch: pytest.MonkeyPatch) -> None:
    real_close, real_job = Log.close, Log._checkpoint_job
    closing: set[Log] = set()

    def close(log: Log, clean: bool, done: Any) -> None:
        closing.add(log)
        real_close(log, clean, done)

    def checkpoint_job(log: Log, *arguments: Any, **named: Any) -> Any:
        return (lambda: []) if log in closing else real_job(log, *arguments, **named)

    patch.setattr(Log, "close", close)
    patch.setattr(Log, "_checkpoint_job", checkpoint_job)


# Syncs.


@mutation("A sync does nothing, and the recovery point moves.", scenario="power", signs=(INVARIANT,))
def sync_does_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogSegment, "sync_blocking", lambda segment: None)


@mutation(
    "Names of new files are not synced.",
    scenario="durable",
    signs=(INVARIANT,),
    shape=topics(only(members=1), internal_segment_bytes="2048"),
    first_seed=1,
)
def file_names_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DirectorySync, "sync_blocking", lambda directory: None)


@mutation(
    "A failed sync is repeated as if it could succeed.",
    scenario="disk",
    signs=(INVARIANT,),
    shape=topics(only(syncs_fail), flush_messages="2"),
)
def failed_sync_is_repeated(patch: pytest.MonkeyPatch) -> None:
    real = LogSegment.sync_blocking

    def sync(segment: LogSegment) -> None:
        for _ in range(5):
            try:
                return real(segment)
            except OSError:
                continue
        return real(segment)

    patch.setattr(LogSegment, "sync_blocking", sync)


@mutation(
    "Missing file descriptors count as a disk failure.",
    scenario="disk",
    signs=("LivenessError",),
    shape=topics(only("out_of_files"), flush_messages="2"),
)
def shortage_is_a_failing_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kbroker.storage.log.log_health.is_shortage", lambda error: error.errno == ENOSPC)
    patch.setattr("kbroker.storage.log.log.is_unbegun_sync", lambda error: False)


@mutation(
    "A broker that starts on a full disk appends without new leader epochs.",
    scenario="crash",
    signs=(INVARIANT,),
    shape=only(start_without_room, members=0),
)
def appends_without_new_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionMaintenance, "suspend_appends", lambda self, partition: None)


# Appends.


@mutation(
    "A partial batch on a full disk is kept, and the next batch is appended after it.",
    scenario="disk",
    signs=(INVARIANT,),
    shape=only("full"),
)
def partial_write_is_not_cut_back(patch: pytest.MonkeyPatch) -> None:
    def cut_back(log: Log, error: OSError) -> KafkaError:
        log.full = True
        log._update_limits()
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))

    patch.setattr(Log, "_cut_back", cut_back)


@mutation(
    "A new segment keeps the old content of its file.",
    scenario="disk",
    signs=(INVARIANT,),
    shape=topics(only("leftovers"), internal_segment_bytes="2048"),
)
def leftover_file_is_appended_to(patch: pytest.MonkeyPatch) -> None:
    def create_file(segment: LogSegment) -> None:
        segment.file = segment.disk.open(segment.path(), create=True)

    patch.setattr(LogSegment, "create_file", create_file)


# Reads.


@mutation(
    "Results of cold reads of two partitions are exchanged.",
    scenario="disk",
    signs=("unsent value", "inconsistent offsets", "corrupt read", "AssertionError", "skipped records"),
    shape=only("slow_disk", "restart"),
)
def cold_reads_are_mixed_up(patch: pytest.MonkeyPatch) -> None:
    real = partition_reads.read_cold_blocking
    patch.setattr(fetch_manager, "read_cold_blocking", lambda cold, budget: real(cold, budget)[::-1])


@mutation(
    "An index lookup uses the entry of the next offset.",
    scenario="crash",
    signs=("skipped records", "lost write"),
    shape=topics(only("restart", "kill"), index_interval_bytes="0"),
)
def index_lookup_off_by_one(patch: pytest.MonkeyPatch) -> None:
    real = SegmentIndexes.entry_at_offset
    patch.setattr(SegmentIndexes, "entry_at_offset", lambda indexes, relative, wait: real(indexes, relative + 1, wait))


@mutation("Reads go on above the high watermark.", scenario="durable", signs=(INVARIANT, "unflushed read"))
def reads_pass_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    real = log_reads.read_batches

    def read(log: Log, offset: int, max_bytes: int, max_offset: int, *flags: bool) -> Any:
        return real(log, offset, max_bytes, log.log_end_offset, *flags)

    patch.setattr(log_reads, "read_batches", read)


# Deletion.


@mutation(
    "Retention removes one segment too many.",
    scenario="calm",
    signs=("lost write",),
    first_seed=2,
)
def retention_deletes_one_too_many(patch: pytest.MonkeyPatch) -> None:
    real = log_module.count_expired_segments

    def count(segments: Any, *arguments: Any) -> int:
        return min(real(segments, *arguments) + 1, len(segments) - 1)

    patch.setattr(log_module, "count_expired_segments", count)


@mutation(
    "DeleteRecords deletes one record too many.",
    scenario="calm",
    signs=("lost write",),
    shape=short(deleters=2),
)
def delete_records_deletes_one_too_many(patch: pytest.MonkeyPatch) -> None:
    real = Log.delete_records
    patch.setattr(Log, "delete_records", lambda log, offset: real(log, offset + 1))


@mutation(
    "Deleted records are back after a crash.",
    scenario="crash",
    signs=("deleted record",),
    shape=broker(only(crash, deleters=2, members=0), log_retention_check_interval_ms="300000"),
)
def log_start_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = recovery.open_log

    def open_log(*arguments: Any, log_start_offset: int, **named: Any) -> Log:
        return real(*arguments, **named)

    patch.setattr("kbroker.replica.logs.log_manager.open_log", open_log)


# Compaction.


class _SyncedLog:
    """A log whose records all count as synced."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, "log_end_offset" if name == "recovery_point" else name)


@mutation(
    "Segments that are not synced are compacted.",
    scenario="compaction",
    signs=("lost write", "skipped records"),
    shape=compacted(one_partition(only(blink_between_swaps, seconds=6.0, members=0, producers=2)), keys=200),
    first_seed=1,
)
def unsynced_segments_are_compacted(patch: pytest.MonkeyPatch) -> None:
    real: Any = log_cleaner_manager.find_log_to_clean
    patch.setattr(log_cleaner_manager, "find_log_to_clean", lambda log, *arguments: real(_SyncedLog(log), *arguments))


@mutation(
    "A start removes only the first of the segments that a compacted segment replaces.",
    scenario="compaction",
    signs=(INVARIANT, "lost write", "inconsistent offsets"),
    shape=compacted(one_partition(only(die_in_a_swap, seconds=6.0, members=0, producers=3)), keys=100),
)
def swap_leaves_sources(patch: pytest.MonkeyPatch) -> None:
    real = segment_swap._remove_segment

    def remove_segment(disk: Any, directory: str, base_offset: int) -> None:
        if disk.exists(file_names.segment_file(directory, base_offset, file_names.LOG) + file_names.SWAP):
            real(disk, directory, base_offset)

    patch.setattr(segment_swap, "_remove_segment", remove_segment)


STORAGE = (
    recovery_trusts_every_crc,
    recovery_forgets_producers,
    recovery_skips_the_snapshot,
    recovery_keeps_segments_after_a_gap,
    dropped_segments_come_back,
    recovery_leaves_the_torn_tail,
    recovery_cuts_one_batch_too_many,
    clean_marker_is_kept,
    clean_marker_of_dirty_logs,
    sync_does_nothing,
    file_names_are_not_synced,
    failed_sync_is_repeated,
    shortage_is_a_failing_disk,
    appends_without_new_epochs,
    partial_write_is_not_cut_back,
    leftover_file_is_appended_to,
    cold_reads_are_mixed_up,
    index_lookup_off_by_one,
    reads_pass_the_high_watermark,
    retention_deletes_one_too_many,
    delete_records_deletes_one_too_many,
    log_start_is_forgotten,
    unsynced_segments_are_compacted,
    swap_leaves_sources,
)
