"""Mistakes in delayed delivery, idempotency keys, views and partitions that close."""

import asyncio
from random import Random
from typing import Any

import pytest

from kbroker.queues.closing import forwarder, partition_removal
from kbroker.queues.closing.forwarded_batches import forwarded_copy, position_of
from kbroker.queues.dedup import dedup_extension
from kbroker.queues.dedup.dedup_extension import DedupExtension
from kbroker.queues.dedup.key_table import KeyTable
from kbroker.queues.delay import snapshots, stored_records
from kbroker.queues.delay.delay_batches import HIDDEN, Effects
from kbroker.queues.delay.delay_state import DelayState
from kbroker.queues.delay.delivery import DelayedDelivery
from kbroker.queues.delay.pending_records import PendingRecords
from kbroker.replica.fetch import cold_reads, partition_reads
from kbroker.replica.fetch.read_filter import Filtered, FilterSequence, HiddenRanges
from kbroker.simulation.clients.workloads.queue_topics import KEYED
from kbroker.simulation.scenarios.simulation import Simulation
from kbroker.storage.log.log import Log
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import NO_LEADER_EPOCH, parse_header
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, LIVENESS, SPINNING, mutation, replaces, wrap
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import only

BROKEN = ["BrokenQueue"]
KILLS = only("kill", producers=1, readers=1, members=0, deleters=0)


@mutation("queues", BROKEN, KILLS)
@replaces(snapshots, "effects_of")
def deliveries_are_not_replayed(real: Any, *batch: Any) -> Effects:
    """After a restart, records that were delivered before are pending again."""
    effects: Effects = real(*batch)
    return effects._replace(removed=[])


@mutation("queues", [LIVENESS, *BROKEN], KILLS, first_seed=1, slow=True)
@replaces(snapshots, "effects_of")
def stored_records_are_not_replayed(real: Any, *batch: Any) -> Effects:
    """After a restart, the last stored record of each batch is not pending."""
    effects: Effects = real(*batch)
    return effects._replace(added=effects.added[:-1])


@mutation("queues", BROKEN, KILLS, first_seed=1)
@replaces(PendingRecords, "due")
def records_are_delivered_early(real: Any, pending: Any, now_ms: int, *limit: Any) -> Any:
    """Records are delivered up to 300 ms before they are due."""
    return real(pending, now_ms + 300, *limit)


@mutation("queues", BROKEN, KILLS)
@replaces(stored_records, "pick_records")
def skipped_records_are_read(real: Any, body: bytes, header: Any, offsets: Any) -> Any:
    """Of a batch with other records between those that are due, the records before them are delivered."""
    shifted = [max(offset - 1, header.base_offset) if len(offsets) < header.count else offset for offset in offsets]
    picked = real(body, header, sorted({*shifted}))
    return picked + picked[-1:] * (len(offsets) - len(picked))


@mutation("queues", BROKEN, only(producers=1, readers=1, members=0, deleters=0), first_seed=3, slow=True)
@replaces(DelayedDelivery, "retention_limit")
def retention_deletes_pending_records(_: Any, delivery: Any, now_ms: int) -> int:
    """Segments are deleted with the pending records in them."""
    limit: int = delivery._partition.high_watermark
    return limit


@mutation("queues", [SPINNING], only(producers=1, readers=1, members=0, deleters=0), first_seed=6, slow=True)
@replaces(DelayState, "drop_below")
def deleted_records_stay_pending(_: Any, state: Any, offset: int) -> None:
    """DeleteRecords deletes pending records, and they are still pending: the delivery reads them again and again."""


@mutation("queues", BROKEN, KILLS, first_seed=7)
@replaces(snapshots, "effects_of")
def cancellations_are_not_replayed(real: Any, batch: Any, body: Any, header: Any, *levels: Any) -> Effects:
    """After a restart, cancelled records are pending again."""
    effects: Effects = real(batch, body, header, *levels)
    is_cancellation = header.attributes & HIDDEN and not effects.added
    return effects._replace(removed=[]) if is_cancellation else effects


@mutation("queues", BROKEN, KILLS, first_seed=10, slow=True)
@replaces(snapshots, "effects_of")
def moved_records_are_not_replayed(real: Any, *batch: Any) -> Effects:
    """After a restart, records that retention has moved are not pending."""
    effects: Effects = real(*batch)
    return effects._replace(added=[]) if effects.removed else effects


@mutation("queues", BROKEN, KILLS, first_seed=14, slow=True)
@replaces(KeyTable, "replay")
def keys_are_not_replayed(_: Any, *batch: Any) -> None:
    """After a restart, the keys of stored records are not known."""


class _SkippingFilter:
    """A filter that selects nothing of the last batch of a segment."""

    def __init__(self, real: FilterSequence, log: Log) -> None:
        self._real = real
        self._ends = {segment.base_offset for segment in log.segments}

    def filter_batch(self, batch: memoryview, header: Any, now_ms: int, max_bytes: int) -> Any:
        return None if header.next_offset in self._ends else self._real.filter_batch(batch, header, now_ms, max_bytes)


@mutation("queues", BROKEN, only(producers=1, readers=1, members=0, deleters=0), slow=True)
def views_skip_the_end_of_segments(patch: pytest.MonkeyPatch) -> None:
    """A view lacks the last batch of each segment."""

    def read_skipping(real: Any, log: Log, filtered: Filtered, *rest: Any, **named: Any) -> Any:
        # The topics have filters of their own, so that those of their views are sequences.
        if isinstance(filtered.read_filter, FilterSequence):
            filtered = filtered._replace(read_filter=_SkippingFilter(filtered.read_filter, log))
        return real(log, filtered, *rest, **named)

    for module in (partition_reads, cold_reads):
        wrap(patch, module, "read_filtered", read_skipping)


@mutation("queues", BROKEN, KILLS)
@replaces(partition_reads, "position_batch")
def moved_positions_have_no_leader_epoch(real: Any, form: Any, last_offset: int, _: int) -> bytearray:
    """A batch that is alone in its response, and moves a position, has no leader epoch."""
    batch: bytearray = real(form, last_offset, NO_LEADER_EPOCH)
    return batch


@mutation("queues", BROKEN, KILLS, slow=True)
@replaces(HiddenRanges, "add")
def hidden_ranges_include_the_next_batch(real: Any, ranges: Any, read_filter: Any, start: int, end: int) -> None:
    """A client that stays at its offset misses the first batch after those that the filter has hidden."""
    real(ranges, read_filter, start, end + 1)


@mutation("queues", [INVARIANT, *BROKEN], KILLS, first_seed=2)
@replaces(ProducerStateManager, "first_of_last_batch")
def forwarded_batches_are_not_recognized(real: Any, *_: Any) -> None:
    """The target of a closing partition appends again what it was sent before."""
    return None


@mutation("queues", BROKEN, KILLS, first_seed=4)
@replaces(forwarder, "must_forward")
def aborted_transactions_are_forwarded(real: Any, header: Any, first_epoch: int, aborted: Any) -> Any:
    """The records of a closing partition are forwarded, also if their transaction was aborted."""
    return real(header, first_epoch, [])


@mutation("queues", [INVARIANT, *BROKEN], KILLS, first_seed=4)
@replaces(forwarder.Forwarder, "_read_blocking")
def forwarders_restart_their_sequences(real: Any, forwarding: Any, position: int, end: int) -> Any:
    """After a restart, the sequences of forwarded batches begin at zero again."""
    chunk = real(forwarding, position, end)
    first = vars(forwarding).setdefault("first", position)
    restarted = []
    for batch in chunk.batches:
        header = parse_header(batch)
        sequence = position_of(header.producer_epoch, header.base_sequence) - first
        restarted.append(forwarded_copy(batch, header._replace(base_offset=sequence), header.producer_id))
    return chunk._replace(batches=restarted)


@mutation("queues", [LIVENESS, *BROKEN], KILLS, slow=True)
@replaces(partition_removal, "_is_invisible")
def partitions_retire_with_records(*_: Any) -> bool:
    """Closing partitions are hidden from consumers although they have records that were not read."""
    return True


@mutation("queues", BROKEN, KILLS, first_seed=6)
@replaces(dedup_extension, "acknowledged_offset")
def all_duplicates_have_the_offsets_behind_the_first(_: Any, offsets: dict[int, int]) -> int:
    """A batch of duplicates is acknowledged with the offset of the first one's original, wherever the others are."""
    return offsets[0]


@mutation("queues", BROKEN, KILLS)
@replaces(DedupExtension, "append")
def duplicates_have_the_offsets_of_gaps(real: Any, extension: Any, *batch: Any) -> Any:
    """A batch with duplicates is acknowledged with the offset at which its other records are stored."""
    log = extension._partition.log
    offset = log.log_end_offset
    result = real(extension, *batch)
    return (offset, *result[1:]) if log.log_end_offset > offset else result


async def _leader_with_keys_is_replaced(simulation: Simulation, random: Random) -> None:
    """The leader gets keys, some of them twice, while it does not reach its followers, one of which then leads."""
    scene = Scene(simulation, (KEYED, 0))
    if await scene.until_in_sync():
        leader, followers = scene.leader, scene.followers
        scene.cut(leader, followers)
        await asyncio.sleep(0.5)
        scene.expire(leader)
        await scene.until(lambda: scene.leads(followers[0]))
        scene.heal(leader, followers)
        await scene.until_in_sync()


@mutation("cluster-queues", BROKEN, replicated(_leader_with_keys_is_replaced, seconds=8.0), first_seed=6, slow=True)
@replaces(DedupExtension, "append")
def duplicates_do_not_wait(real: Any, extension: Any, *batch: Any) -> Any:
    """A duplicate is acknowledged before the record that was stored first is committed."""
    log = extension._partition.log
    end_offset = log.log_end_offset
    result = real(extension, *batch)
    return result if log.log_end_offset > end_offset else (result[0], 0, result[2])
