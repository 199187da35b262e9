"""Mistakes with transactions: in the coordinator, in the log, in transactional offset commits."""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.offset_metadata_manager import OffsetMetadataManager, PendingTransactionalOffsets
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext
from kbroker.coordinator.runtime.operation import ignore
from kbroker.coordinator.transaction import transaction_shard, transitions
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerSender
from kbroker.coordinator.transaction.transaction_metadata import PREPARED
from kbroker.coordinator.transaction.transaction_shard import TransactionShard
from kbroker.metadata.producer_id_manager import BLOCK_SIZE, ProducerIdManager
from kbroker.replica.fetch import cold_reads, partition_reads
from kbroker.replica.logs import log_manager
from kbroker.simulation.clients import group_offsets
from kbroker.simulation.clients.group_member import Member
from kbroker.simulation.clients.group_offsets import Membership
from kbroker.simulation.scenarios.simulation import Simulation
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.producers.producer_table import ENTRY, FrozenProducers
from kbroker.storage.producers.transactions import NO_UNSTABLE_OFFSET, OngoingTransactions
from kbroker.storage.recovery.state_rebuilder import StateRebuilder
from protocol.errors import ErrorCode
from tests.unit.simulation.mutations.mutation import INVARIANT, ignore_errors, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import Shape, broker, crash, only, slow_syncs, topics, with_values

# Anomalies of a transaction that is committed in one partition and aborted in another.
TORN = ["aborted read", "torn transaction", "skipped records", "lost write", "pre-committed read"]


def transacting(shape: Shape, **values: Any) -> Shape:
    """Run only transactional producers and readers."""
    others = dict.fromkeys(("producers", "members", "deleters", "transformers", "stale_clients"), 0)
    transactional = {"transactors": 3, "transactional_ids": 2, "readers": 2, "coordination": False}
    return with_values(shape, **{**others, **transactional, **values})


def transforming(shape: Shape, **values: Any) -> Shape:
    return transacting(shape, **{"transformers": 3, "producers": 1, "transactors": 0, "readers": 1, **values})


async def transformer_stalls(simulation: Simulation, random: Random) -> None:
    """Pause a transformer until its group has rebalanced without it, and then resume it."""
    client = random.choice([client for client in simulation.clients if client.host.startswith("transformer")])
    if not client.paused:
        simulation.note(f"{client.host} stalls")
        client.pause()
        try:
            await asyncio.sleep(random.choice((1.0, 12.0)))
        finally:
            client.resume()
            simulation.note(f"{client.host} resumes")


# The coordinator.


@mutation(
    "transactions",
    TORN,
    transacting(only("full", crash, pause_s=0.3, concurrent_faults=2, seconds=8.0)),
    first_seed=10,
    slow=True,
)
@replaces(TransactionShard, "_transition")
def markers_come_before_the_prepare(
    real: Any, shard: TransactionShard, entry: Any, metadata: Any, response: Any
) -> Any:
    """Markers are written before the prepare is."""
    if metadata.state in PREPARED:
        shard._markers.send_markers(metadata, shard._context.epoch, lambda: None)
    return real(shard, entry, metadata, response)


@mutation(
    "transactions", ["LivenessError", *TORN, INVARIANT], transacting(only(crash, pause_s=0.3, seconds=8.0)), slow=True
)
def completed_with_the_first_marker(patch: pytest.MonkeyPatch) -> None:
    """A transaction counts as completed with the first marker."""

    def on_written(sender: TransactionMarkerSender, markers: Any, tp: Any) -> None:
        is_first = len(markers.remaining) == len(markers.metadata.partitions)
        markers.remaining.discard(tp)
        if is_first:
            markers.on_all_written()

    def send(real: Any, sender: TransactionMarkerSender, markers: Any, tp: Any) -> None:
        # One after the other, as to several brokers.
        delay_s = 0.05 * sorted(markers.metadata.partitions).index(tp)
        sender._environment.loop.call_later(delay_s, real, sender, markers, tp)

    patch.setattr(TransactionMarkerSender, "_on_written", on_written)
    wrap(patch, TransactionMarkerSender, "_send", send)
    patch.setattr(TransactionMarkerSender, "_is_pending", lambda sender, markers: True)
    patch.setattr(TransactionMarkerSender, "remove", lambda *_: None)


@mutation("transactions", ["LivenessError"], transacting(only(crash, pause_s=0.3)), first_seed=7)
@replaces(TransactionShard, "on_loaded")
def prepared_is_not_resumed(_: Any, shard: Any) -> None:
    """A prepared transaction is not completed after a restart."""


@mutation("transactions", TORN, transacting(only(), stale_clients=2), first_seed=1, slow=True)
@replaces(transitions, "_prepare_end_with_epoch_bump")
def old_ends_are_accepted(real: Any, entry: Any, producer: Any, *arguments: Any) -> Any:
    """EndTxn is accepted with any earlier epoch."""
    if entry is not None and producer.epoch < entry.metadata.producer_epoch:
        producer = producer._replace(epoch=entry.metadata.producer_epoch)
    return real(entry, producer, *arguments)


@mutation(
    "transactions",
    [INVARIANT, "LivenessError", *TORN],
    transacting(only("stall", seconds=8.0), transactional_ids=1, stale_clients=2),
    slow=True,
)
def zombies_add_partitions(patch: pytest.MonkeyPatch) -> None:
    """Producers of an older epoch add partitions."""

    def with_any_epoch(real: Any, entry: Any, producer_id: int, epoch: int, *arguments: Any) -> Any:
        if entry is not None and epoch < entry.metadata.producer_epoch:
            epoch = entry.metadata.producer_epoch
        return real(entry, producer_id, epoch, *arguments)

    for decision in ("prepare_add_partitions", "verify_partitions"):
        wrap(patch, transaction_shard, decision, with_any_epoch)
    # The log accepts them too, and loses the epochs that it knows.
    ignore_errors(patch, ProducerStateManager, "check", ErrorCode.INVALID_PRODUCER_EPOCH)


@mutation("transactions", ["LivenessError"], transacting(only(seconds=6.0)), first_seed=3, slow=True)
@replaces(transaction_shard, "is_timed_out")
def timeouts_are_ignored(_: Any, *arguments: Any) -> Any:
    """A transaction stays open after its timeout."""
    return False


@mutation(
    "transactions-durable",
    [INVARIANT, "LivenessError", *TORN],
    broker(
        transacting(only(slow_syncs, seconds=20.0), transactors=6, transactional_ids=6),
        transaction_abort_timed_out_transaction_cleanup_interval_ms="100",
    ),
    first_seed=11,
    slow=True,
)
@replaces(transaction_shard, "is_timed_out")
def timeouts_overtake_the_end(real: Any, entry: Any, *times: Any) -> Any:
    """A transaction times out while its EndTxn waits for its append."""
    return real(replace(entry, pending_state=None), *times)


@mutation(
    "transactions", TORN, transacting(only("full", crash, pause_s=0.3, concurrent_faults=2, seconds=8.0)), first_seed=3
)
@replaces(CoordinatorContext, "_run")
def ends_are_acknowledged_early(real: Any, context: CoordinatorContext[Any], event: Any) -> None:
    """EndTxn is acknowledged before it is written."""
    real(context, event)
    if any(getattr(record, "state", None) in PREPARED for record in event.result.records):
        respond, event.respond = event.respond, ignore
        respond(event.result.response, None)


@mutation(
    "transactions",
    [INVARIANT, "LivenessError", "duplicate", *TORN],
    transacting(only("restart", "kill", pause_s=0.3, seconds=6.0), producers=3),
    first_seed=4,
)
def producer_ids_are_assigned_twice(patch: pytest.MonkeyPatch) -> None:
    """Blocks of producer ids are not stored."""

    async def take_block(ids: ProducerIdManager) -> None:
        ids._next, ids._end = 0, BLOCK_SIZE

    patch.setattr(ProducerIdManager, "_reserve_block", take_block)


# The log.


@mutation("transactions", [INVARIANT, *TORN], transacting(only(), stale_clients=3))
@replaces(ProducerStateManager, "check_marker")
def markers_are_accepted_with_any_epoch(_: Any, *arguments: Any) -> None:
    """A transaction marker is accepted with any epoch."""


@mutation("transactions", ["pre-committed read", "aborted read"], transacting(only()))
def reads_pass_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """Fetches with read_committed return all records."""
    patch.setattr(partition_reads, "READ_COMMITTED", -1)


@mutation("transactions", ["aborted read"], transacting(only()))
def aborted_transactions_are_not_returned(patch: pytest.MonkeyPatch) -> None:
    """Fetch responses omit the aborted transactions."""
    for module in (partition_reads, cold_reads):
        patch.setattr(module, "aborted_transactions", lambda *_, **__: [])


@mutation("transactions-durable", [INVARIANT], transacting(only("slow_disk")))
@replaces(OngoingTransactions, "end")
def markers_count_before_the_high_watermark(real: Any, transactions: OngoingTransactions, *arguments: Any) -> Any:
    """The LSO passes a transaction whose marker is not synced."""
    ended = real(transactions, *arguments)
    transactions._completed.clear()
    transactions.first_unstable_offset = next(iter(transactions._open), NO_UNSTABLE_OFFSET)
    return ended


@mutation("transactions", [INVARIANT, "pre-committed read"], transacting(only(crash, pause_s=0.3)))
@replaces(log_manager, "open_log")
def open_transactions_are_forgotten(real: Any, *arguments: Any, **named: Any) -> Any:
    """Open transactions are lost when a log is opened."""
    log = real(*arguments, **named)
    log.producers.transactions = OngoingTransactions()
    return log


@mutation(
    "transactions",
    [INVARIANT, "pre-committed read", "LivenessError"],
    transacting(only("restart", pause_s=0.3)),
    first_seed=1,
)
@replaces(FrozenProducers, "encode")
def snapshots_have_no_open_transactions(real: Any, producers: FrozenProducers, *data: Any) -> Any:
    """A producer snapshot omits open transactions."""
    rows = [ENTRY.pack(*saved._replace(txn_first_offset=-1)) for saved in producers]
    return real(FrozenProducers(rows, len(rows)), *data)


@mutation(
    "lost-files",
    ["aborted read"],
    topics(transacting(only("lost_files", pause_s=0.2, seconds=6.0)), internal_segment_bytes="4096"),
)
@replaces(StateRebuilder, "load_transaction_indexes")
def lost_transaction_indexes_count_as_empty(real: Any, state: Any, existing: Any, *_: Any) -> None:
    """A transaction index that was lost counts as one without aborted transactions."""
    real(state, existing, {}, set())


# Groups.


@mutation(
    "exactly-once", ["unknown commit", "lost commit", "offset without its result"], transforming(only()), slow=True
)
@replaces(OffsetMetadataManager, "replay")
def offsets_count_before_the_marker(
    real: Any, offsets: OffsetMetadataManager, record: Any, record_offset: int, producer_id: int
) -> None:
    """Offsets of a transaction take effect before its marker."""
    real(offsets, record, record_offset, producer_id)
    if producer_id >= 0 and record.value is not None:
        offsets._put(record.key, record.value)


@mutation(
    "exactly-once",
    ["transformed twice", "lost commit"],
    transforming(only(transformer_stalls, seconds=5.0)),
    first_seed=11,
    slow=True,
)
@replaces(PendingTransactionalOffsets, "partitions")
def unstable_offsets_are_returned(_: Any, *arguments: Any) -> Any:
    """OffsetFetch with require_stable returns the previously committed offset."""
    return []


@mutation(
    "exactly-once",
    ["stale commit", "transformed twice", "offset without its result", "result without its offset"],
    transforming(only(transformer_stalls, seconds=30.0), pause_between_sends_s=0.2),
    first_seed=8,
    slow=True,
)
@replaces(ClassicGroup, "validate_transactional_offset_commit")
def stale_members_commit_in_transactions(_: Any, *arguments: Any) -> None:
    """A removed member commits offsets in a transaction."""


@mutation(
    "exactly-once",
    ["stale commit", "transformed twice", "offset without its result", "result without its offset"],
    transforming(only(transformer_stalls, seconds=30.0, pause_s=1.0, concurrent_faults=3), pause_between_sends_s=0.2),
    first_seed=2,
    slow=True,
)
def removed_members_commit_without_membership(patch: pytest.MonkeyPatch) -> None:
    """A program that was removed from its group commits without a member id, which brokers accept. kafka-python 3.0.12
    does that: it reads the group metadata at the end of a transaction."""
    removed: set[str] = set()

    def handle_error(real: Any, member: Member, code: ErrorCode) -> None:
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            removed.add(member.member_id)
        real(member, code)

    def request(real: Any, producer: Any, group: str, membership: Membership, positions: Any) -> Any:
        return real(producer, group, Membership() if membership.member_id in removed else membership, positions)

    wrap(patch, Member, "_handle_error", handle_error)
    wrap(patch, group_offsets, "_transactional_commit", request)
