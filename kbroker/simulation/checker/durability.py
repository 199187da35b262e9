"""Durability: lost writes, records that are unreadable at the end, corrupt reads, acknowledgements and reads of records
that were not durable, reads of deleted records."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, shorten
from kbroker.simulation.checker.history import (
    Corrupt,
    DeleteRecords,
    Loss,
    Operation,
    OperationOf,
    Outcome,
    Poll,
    Send,
    TopicPartition,
    partition_name,
)
from kbroker.simulation.checker.index import (
    NEVER,
    Index,
    LastOffsets,
    Observation,
    PartitionIndex,
    acknowledged,
    acknowledged_since,
    effect_end,
    end_offset,
    ended,
)
from kbroker.simulation.checker.transactions import TransactionOutcome, final_committed_reads, transaction_outcomes


def lost_writes(index: Index) -> Iterator[Anomaly]:
    """Report records that were acknowledged or read, and that the final polls did not return although they passed the
    offset. A record that was read must remain like an acknowledged one, because the broker returns committed records
    only.

    Permitted: records that a Loss may have removed, deleted or compacted records, records of transactions that were not
    committed, and records after the end of the final polls (see `unreadable_at_the_end`).
    """
    if index.history.final is None:
        return
    ends = transaction_outcomes(index)
    missing: dict[TopicPartition, list[tuple[OperationOf[Send], list[int]]]] = {}
    for partition in index.partitions.values():
        final = set(partition.final.values())
        for operation in partition.sends:
            gone = [value for value in operation.action.values if value not in final]
            if gone and _is_committed(operation.action, ends):
                missing.setdefault(partition.tp, []).append((operation, gone))
    seen = index.observations({}, [value for found in missing.values() for _, values in found for value in values])
    for tp, sends in missing.items():
        partition = index.partition(tp)
        left, last = _left_by_losses(partition), LastOffsets(partition)
        for operation, values in sends:
            observations = {value: seen.by_value.get(value, []) for value in values}
            kept = {value: found for value, found in observations.items() if not _is_compacted(last, value, found)}
            yield from _lost(partition, operation, kept, left)


def _lost(
    partition: PartitionIndex,
    operation: OperationOf[Send],
    seen: Mapping[int, list[Observation]],
    left: Mapping[int, int],
) -> Iterator[Anomaly]:
    """Report the lost records of a batch. `seen`: the observations of each missing value. `left`: see
    `_left_by_losses`."""
    if acknowledged(operation) and operation.action.base_offset is None:
        unseen = [value for value, observations in seen.items() if not observations]
        if unseen and not _may_be_gone(partition, operation):
            yield anomaly(
                "unseen at the end",
                f"{shorten(unseen)} of {partition_name(partition.tp)} were acknowledged without an offset and never "
                "read.",
                operation,
            )
    proofs = {value: _proofs(partition, operation, observations, left) for value, observations in seen.items()}
    lost = [value for value, found in proofs.items() if found]
    if lost:
        readers = [proof.operation for proof in proofs[lost[0]] if proof.operation is not operation]
        offsets = [proofs[value][0].offset for value in lost]
        was = "had been read" if readers else "was acknowledged"
        yield anomaly(
            "lost write",
            f"{shorten(lost)} of {partition_name(partition.tp)} {was} at offset {shorten(offsets)} and is missing "
            "at the end.",
            operation,
            *readers[:1],
            *readers[-1:],
        )


def _is_compacted(last: LastOffsets, value: int, seen: list[Observation]) -> bool:
    """Return whether the final polls returned a later record with the same key."""
    return last.is_superseded(value, max([observation.offset for observation in seen], default=-1))


def _is_committed(send: Send, ends: Mapping[int, TransactionOutcome]) -> bool:
    return send.transaction is None or ends.get(send.transaction) is TransactionOutcome.COMMITTED


def _may_be_gone(partition: PartitionIndex, operation: OperationOf[Send]) -> bool:
    """Return whether a batch that was acknowledged without an offset (as a duplicate) may have been removed. Its offset
    is not known, so any later Loss or deletion may have removed it."""
    return any(
        loss.step > acknowledged_since(operation) for loss in partition.possible_losses
    ) or partition.may_be_deleted(-1, operation.begun)


def _proofs(
    partition: PartitionIndex, operation: Operation, observations: list[Observation], left: Mapping[int, int]
) -> list[Observation]:
    """Return the observations of the record that prove that the final polls should have returned it."""
    return [
        observation
        for observation in observations
        if observation.offset < partition.final_end
        and not _may_have_gone(partition, left, observation.offset, observation.since)
        and not partition.may_be_deleted(observation.offset, operation.begun)
    ]


def _may_have_gone(partition: PartitionIndex, left: Mapping[int, int], offset: int, since: int) -> bool:
    """Return whether a Loss may have removed a record that was observed at step `since`. A Loss removes a suffix of the
    log, so it did not remove this record if a later one remained."""
    return any(
        loss.floor <= offset and loss.step > since and left[loss.step] < offset for loss in partition.possible_losses
    )


def _left_by_losses(partition: PartitionIndex) -> dict[int, int]:
    """Return, by step of each Loss, the highest offset that was acknowledged before it and is present at the end."""
    return {
        loss.step: max(
            (
                last
                for send in partition.sends
                if effect_end(send) < loss.step
                and partition.final.get(last := end_offset(send) - 1) == send.action.values[-1]
            ),
            default=-1,
        )
        for loss in partition.possible_losses
    }


def unreadable_at_the_end(index: Index) -> Iterator[Anomaly]:
    """Report partitions whose final polls ended before the last acknowledged record. Faults are over and no transaction
    is open then, so polls with read_committed must reach the end too."""
    if index.history.final is None:
        return
    reach = final_committed_reads(index)[1] if index.transactional else {}
    for partition in index.partitions.values():
        end = min(partition.final_end, reach.get(partition.tp, partition.final_end))
        beyond = [send for send in partition.sends if end_offset(send) > end and not partition.may_be_gone(send)]
        if beyond:
            finals = [
                poll for poll in index.of(Poll) if poll.begun > index.history.final and _includes(poll, partition.tp)
            ]
            yield anomaly(
                "unreadable at the end",
                f"The final reads of {partition_name(partition.tp)} ended at offset {end}; {len(beyond)} "
                "acknowledged batches at or after it are missing, and no power loss or deletion explains it.",
                beyond[0],
                beyond[-1],
                *finals[-3:],
            )


def _includes(operation: OperationOf[Poll], tp: TopicPartition) -> bool:
    return tp in operation.action.positions or any(read.tp == tp for read in operation.action.reads)


def corrupt_reads(index: Index) -> Iterator[Anomaly]:
    """Report data with a wrong CRC that reached a consumer. The broker must not return it, whatever the disk does."""
    for operation in index.of(Corrupt):
        corrupt = operation.action
        text = f"{operation.process} read corrupt data at offset {corrupt.offset} of {partition_name(corrupt.tp)}"
        yield anomaly("corrupt read", f"{text}: {corrupt.reason}.", operation)


def unflushed_acknowledgements(index: Index) -> Iterator[Anomaly]:
    """Report acknowledged records that a later Loss may have removed, under flush.before.ack."""
    for partition in index.partitions.values():
        for operation in partition.sends:
            send, last = operation.action, end_offset(operation) - 1
            if last < 0 or partition.may_be_deleted(last, operation.begun):
                continue
            if partition.may_have_lost(last, ended(operation), NEVER):
                yield anomaly(
                    "unflushed acknowledgement",
                    f"{shorten(send.values)} of {partition_name(partition.tp)} was acknowledged at offset "
                    f"{send.base_offset} before it was durable.",
                    operation,
                    _loss_after(index, partition, ended(operation), last),
                )


def unflushed_reads(index: Index) -> Iterator[Anomaly]:
    """Report records that were read before they were durable, under flush.before.ack."""
    lowest = {tp: _lowest_floors(partition) for tp, partition in index.partitions.items() if partition.possible_losses}
    if not lowest:
        return
    for operation in index.of(Poll):
        for read in operation.action.reads if operation.outcome is Outcome.OK else ():
            if read.tp not in lowest:
                continue
            steps, floors = lowest[read.tp]
            after = bisect_right(steps, ended(operation))
            if after < len(floors) and floors[after] <= read.offset:
                partition = index.partitions[read.tp]
                sender = index.senders.get(read.value)
                if partition.may_be_deleted(read.offset, operation.begun if sender is None else sender.begun):
                    continue
                yield anomaly(
                    "unflushed read",
                    f"{operation.process} read {read.value} at offset {read.offset} of {partition_name(read.tp)} "
                    "before it was durable.",
                    operation,
                    _loss_after(index, partition, ended(operation), read.offset),
                )
                break


def _lowest_floors(partition: PartitionIndex) -> tuple[list[int], list[int]]:
    """Return the steps of the losses, and for each the lowest floor of it and all later losses."""
    floors = list(accumulate((loss.floor for loss in reversed(partition.possible_losses)), min))
    return [loss.step for loss in partition.possible_losses], floors[::-1]


def _loss_after(index: Index, partition: PartitionIndex, step: int, offset: int) -> Operation:
    loss_step = next(loss.step for loss in partition.possible_losses if loss.step > step and loss.floor <= offset)
    return next(loss for loss in index.of(Loss) if loss.begun == loss_step)


# Deleted records: a record before the offset of an acknowledged DeleteRecords must not be read again.
#
# The broker syncs the log start offset before it acknowledges. (Apache Kafka writes it periodically, so a crash brings
# deleted records back there.) Offsets that a Loss made free may hold new records, so these are not checked.


def deleted_record_reads(index: Index) -> Iterator[Anomaly]:
    """Report polls that began after a deletion was acknowledged and returned a record that it had deleted."""
    deletions = {tp: _acknowledged(partition) for tp, partition in index.partitions.items() if partition.deletions}
    if not deletions:
        return
    for poll in index.of(Poll):
        for tp, offset in {read.tp: read.offset for read in reversed(poll.action.reads)}.items():
            earlier = deletions.get(tp, [])
            count = bisect_left(earlier, poll.begun, key=ended)
            if not count or offset >= earlier[count - 1].action.before:
                continue
            deletion = earlier[count - 1]
            if not index.partition(tp).may_have_lost(offset, deletion.begun, ended(poll)):
                yield anomaly(
                    "deleted record",
                    f"{poll.process} received offset {offset} of {partition_name(tp)} after the records before "
                    f"offset {deletion.action.before} had been deleted.",
                    deletion,
                    poll,
                )


def _acknowledged(partition: PartitionIndex) -> list[OperationOf[DeleteRecords]]:
    """Return the acknowledged deletions in the order of their ends, without those that deleted nothing more."""
    found: list[OperationOf[DeleteRecords]] = []
    for deletion in sorted(partition.deletions, key=ended):
        if deletion.outcome is Outcome.OK and (not found or deletion.action.before > found[-1].action.before):
            found.append(deletion)
    return found
