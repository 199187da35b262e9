"""Mistakes in responses: acknowledgements, duplicates, fetches, their order; and in the metadata of topics."""

from collections import deque
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.metadata import controller
from kbroker.metadata.store.journal import Journal
from kbroker.replica.fetch import fetch_manager, partition_reads
from kbroker.replica.fetch.fetch_manager import FetchManager
from kbroker.replica.partition import Partition
from kbroker.replica.purgatory import Purgatory
from kbroker.server.response_queue import ResponseQueue
from kbroker.storage.log.log import Log
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.errors import ErrorCode
from protocol.records.batch import parse_header
from tests.unit.simulation.mutations.mutation import mutation
from tests.unit.simulation.mutations.shapes import blink, only, short

INVARIANT = "BrokenInvariant"
# Only the end of the run matters.
alone = short(0.1, producers=1, readers=1, members=0)


# Acknowledgements.


@mutation(
    "Each 30th batch is acknowledged and never written.",
    scenario="calm",
    signs=("lost write", "inconsistent offsets", "LivenessError"),
    shape=short(),
)
def acknowledged_and_never_written(patch: pytest.MonkeyPatch) -> None:
    real, count = Log.append, 0

    def append(log: Log, *arguments: Any) -> int:
        nonlocal count
        count += 1
        return log.log_end_offset if count % 30 == 0 else real(log, *arguments)

    patch.setattr(Log, "append", append)


@mutation(
    "A batch is acknowledged although its append failed.",
    scenario="disk",
    signs=("lost write", "unreadable at the end", "inconsistent offsets"),
    shape=only("full", members=0, producers=3),
)
def acknowledged_although_the_append_failed(patch: pytest.MonkeyPatch) -> None:
    real = Partition.append_as_leader

    def append(partition: Partition, records: Any, *arguments: Any) -> tuple[int, int, int]:
        try:
            return real(partition, records, *arguments)
        except KafkaError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            base_offset = partition.log.log_end_offset
            return base_offset, base_offset + parse_header(records).last_offset_delta + 1, -1

    patch.setattr(Partition, "append_as_leader", append)


@mutation(
    "Under flush.before.ack, unsynced records are acknowledged.",
    scenario="durable",
    signs=(INVARIANT, "unflushed acknowledgement"),
)
def unsynced_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = Partition.advance_high_watermark

    def advance_high_watermark(partition: Partition) -> None:
        partition.flush_before_ack, flush_before_ack = False, partition.flush_before_ack
        real(partition)
        partition.flush_before_ack = flush_before_ack

    patch.setattr(Partition, "advance_high_watermark", advance_high_watermark)


@mutation(
    "A retry of a batch that waits for its sync is acknowledged at once.",
    scenario="everything-durable",
    signs=(INVARIANT, "stale poll"),
    shape=only("slow_disk", "reset", producers=3, members=0, coordination=False),
)
def retry_does_not_wait_for_the_sync(patch: pytest.MonkeyPatch) -> None:
    real = Partition.append_as_leader

    def append(partition: Partition, *arguments: Any) -> tuple[int, int, int]:
        log_end_offset = partition.log.log_end_offset
        base_offset, end_offset, append_time_ms = real(partition, *arguments)
        return base_offset, 0 if end_offset <= log_end_offset else end_offset, append_time_ms

    patch.setattr(Partition, "append_as_leader", append)


# Sequences.


@mutation(
    "A repeated batch is appended again.",
    scenario="network",
    signs=(INVARIANT,),
    shape=only("reset", "cut", concurrent_faults=2, producers=3, members=0),
    first_seed=2,
)
def duplicates_are_appended(patch: pytest.MonkeyPatch) -> None:
    real = ProducerStateManager.check
    patch.setattr(ProducerStateManager, "check", lambda states, *batch: real(states, *batch) and None)


@mutation(
    "A repeated batch is acknowledged with a wrong offset.",
    scenario="network",
    signs=("inconsistent offsets",),
    shape=only("reset", "cut", concurrent_faults=2, producers=3, members=0),
    first_seed=2,
)
def duplicates_get_a_wrong_offset(patch: pytest.MonkeyPatch) -> None:
    real = ProducerStateManager.check

    def check(states: ProducerStateManager, *batch: Any) -> tuple[int, int, int] | None:
        found = real(states, *batch)
        return None if found is None else (found[0] + 1, *found[1:])

    patch.setattr(ProducerStateManager, "check", check)


@mutation(
    "A batch with a sequence gap is accepted.",
    scenario="power",
    signs=(INVARIANT,),
    shape=only(blink, producers=3, members=0),
    first_seed=1,
)
def sequence_gaps_are_accepted(patch: pytest.MonkeyPatch) -> None:
    real = ProducerStateManager.check

    def check(states: ProducerStateManager, *batch: Any) -> tuple[int, int, int] | None:
        try:
            return real(states, *batch)
        except KafkaError as error:
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return None
            raise

    patch.setattr(ProducerStateManager, "check", check)


# Fetches.


@mutation("A partition that had nothing is forgotten by its session.", scenario="calm", signs=("stale poll",))
def session_loses_idle_partitions(patch: pytest.MonkeyPatch) -> None:
    def wait_for_change(session: Any, fetched: Any, partition: Partition) -> None:
        session.ready.pop(fetched, None)

    patch.setattr(partition_reads, "wait_for_change", wait_for_change)
    patch.setattr(fetch_manager, "wait_for_change", wait_for_change)


@mutation(
    "A second fetch in a session leaves the first waiting.", scenario="calm", signs=("LateResponse",), shape=alone
)
def first_fetch_of_a_session_waits_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FetchManager, "_end_waiter", lambda manager, session: None)


@mutation(
    "After a deadline the timer for the next one is not set.", scenario="calm", signs=("LateResponse",), shape=alone
)
def next_deadline_has_no_timer(patch: pytest.MonkeyPatch) -> None:
    def expire(purgatory: Purgatory) -> None:
        purgatory._timer = None
        now_ms = purgatory._environment.clock.mono_ms()
        while (operation := purgatory._deadlines.pop_due(now_ms)) is not None:
            operation.expire()

    patch.setattr(Purgatory, "_expire", expire)


# Responses.


@mutation(
    "A response is sent before the responses to earlier requests.",
    scenario="durable",
    signs=("UnhandledError",),
    first_seed=2,
)
def responses_are_out_of_order(patch: pytest.MonkeyPatch) -> None:
    real = ResponseQueue._send_ready

    def send_ready(queue: ResponseQueue) -> None:
        queue._contexts = deque(sorted(queue._contexts, key=lambda context: context.body is None))
        real(queue)

    patch.setattr(ResponseQueue, "_send_ready", send_ready)


# Metadata.


class _NeverSynced:
    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fdatasync(self) -> None:
        pass


@mutation(
    "The metadata journal is not synced.",
    scenario="power",
    signs=(INVARIANT, "ForeignDirectory", "NotServing", "lost write"),
    shape=only("power"),
)
def metadata_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = Journal.append

    def append(journal: Journal, ops: Any) -> None:
        if not isinstance(journal._file, _NeverSynced):
            journal._file = _NeverSynced(journal._file)  # type: ignore[assignment]
        real(journal, ops)

    patch.setattr(Journal, "append", append)


@mutation("A broker that starts leads on in its old leader epoch.", scenario="power", signs=(INVARIANT,))
def leader_epoch_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(controller, "_next_leader_epoch", lambda partition: partition)


SERVING = (
    acknowledged_and_never_written,
    acknowledged_although_the_append_failed,
    unsynced_is_committed,
    retry_does_not_wait_for_the_sync,
    duplicates_are_appended,
    duplicates_get_a_wrong_offset,
    sequence_gaps_are_accepted,
    session_loses_idle_partitions,
    first_fetch_of_a_session_waits_on,
    next_deadline_has_no_timer,
    responses_are_out_of_order,
    metadata_is_not_synced,
    leader_epoch_stays,
)
