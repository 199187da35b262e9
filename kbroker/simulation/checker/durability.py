"""What was promised is kept: lost writes, what nobody could read at the end, and what a Loss must not take."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.compaction import LastOffsets
from kbroker.simulation.checker.history import Corrupt, Operation, Outcome, Place, Poll, Send
from kbroker.simulation.checker.index import (
    NEVER,
    Index,
    Observation,
    PartitionIndex,
    acknowledged,
    acknowledged_since,
    effect_end,
)
from kbroker.simulation.checker.transactions import TransactionOutcome, final_committed_reads, transaction_outcomes


def lost_writes(index: Index) -> Iterator[Anomaly]:
    """What was acknowledged or has been read, and what the final polls, which came past its offset, did not give.

    Permitted: what a Loss may have taken, what was deleted or compacted, what a transaction wrote that was not
    committed, and what lies where no final poll came (`unreadable_at_the_end`). What was read once has to stay as if it
    were acknowledged: the broker gives only what is committed.
    """
    if index.history.final is None:
        return
    ends = transaction_outcomes(index)
    missing: list[tuple[PartitionIndex, Operation, list[int]]] = []
    for partition in index.partitions.values():
        final = set(partition.final.values())
        for operation in partition.sends:
            if not isinstance(operation.action, Send) or final.issuperset(operation.action.values):
                continue
            if _is_committed(operation.action, ends):
                gone = [value for value in operation.action.values if value not in final]
                missing.append((partition, operation, gone))
    seen = index.observations({}, [value for _, _, values in missing for value in values]).by_value
    left = {partition.place: _left_by_losses(partition) for partition, _, _ in missing}
    last = {partition.place: LastOffsets(partition.final, partition.keys) for partition, _, _ in missing}
    for partition, operation, values in missing:
        observations = {value: seen.get(value, []) for value in values}
        last_offsets = last[partition.place]
        kept = {value: found for value, found in observations.items() if not _is_compacted(last_offsets, value, found)}
        yield from _lost(partition, operation, kept, left[partition.place])


def _lost(
    partition: PartitionIndex, operation: Operation, seen: Mapping[int, list[Observation]], left: Mapping[int, int]
) -> Iterator[Anomaly]:
    """`seen`: of each value that is not there at the end; `left` as `_left_by_losses` gives it."""
    if acknowledged(operation) and isinstance(operation.action, Send) and operation.action.base_offset is None:
        unseen = [value for value, observations in seen.items() if not observations]
        if unseen and not _may_be_gone(partition, operation):
            yield anomaly(
                "unseen at the end",
                f"{shorten(unseen)} of {partition_name(partition.place)} were acknowledged without an offset and never "
                "read.",
                operation,
            )
    proofs = {value: _proofs(partition, operation, observations, left) for value, observations in seen.items()}
    lost = [value for value, found in proofs.items() if found]
    if lost:
        readers = [one.operation for one in proofs[lost[0]] if one.operation is not operation]
        offsets = [proofs[value][0].offset for value in lost]
        was = "had been read" if readers else "was acknowledged"
        yield anomaly(
            "lost write",
            f"{shorten(lost)} of {partition_name(partition.place)} {was} at offset {shorten(offsets)} and is missing "
            "at the end.",
            operation,
            *readers[:1],
            *readers[-1:],
        )


def _is_compacted(last: LastOffsets, value: int, seen: list[Observation]) -> bool:
    """Whether the final reads have a later record of its key."""
    return last.is_superseded(value, max([one.offset for one in seen], default=-1))


def _is_committed(send: Send, ends: Mapping[int, TransactionOutcome]) -> bool:
    return send.transaction is None or ends.get(send.transaction) is TransactionOutcome.COMMITTED


def _may_be_gone(partition: PartitionIndex, operation: Operation) -> bool:
    """Where a batch lies that was acknowledged without an offset (as a duplicate) is known to nobody, so any Loss may
    have taken it and any deletion may have been of it."""
    return any(
        cut.step > acknowledged_since(operation) for cut in partition.possible_losses
    ) or partition.may_be_deleted(-1, operation.begun)


def _proofs(
    partition: PartitionIndex, operation: Operation, observations: list[Observation], left: Mapping[int, int]
) -> list[Observation]:
    """Those that tell of a record that should still be there, and that a final poll came past."""
    return [
        one
        for one in observations
        if one.offset < partition.final_end
        and not _may_have_gone(partition, left, one.offset, one.since)
        and not partition.may_be_deleted(one.offset, operation.begun)
    ]


def _may_have_gone(partition: PartitionIndex, left: Mapping[int, int], offset: int, since: int) -> bool:
    """Whether a Loss may have taken a record that was seen at the step `since`. It takes a suffix: not this record
    if it left a later one."""
    return any(
        cut.floor <= offset and cut.step > since and left[cut.step] < offset for cut in partition.possible_losses
    )


def _left_by_losses(partition: PartitionIndex) -> dict[int, int]:
    """For each Loss, by its step: the highest offset that was acknowledged before it and is there at the end."""
    return {
        cut.step: max((_last_left(partition, one) for one in partition.sends if effect_end(one) < cut.step), default=-1)
        for cut in partition.possible_losses
    }


def _last_left(partition: PartitionIndex, operation: Operation) -> int:
    """The last offset of an acknowledged batch that is there at the end; -1 of another."""
    send = operation.action
    assert isinstance(send, Send)
    if send.base_offset is None or not acknowledged(operation):
        return -1
    last = send.base_offset + len(send.values) - 1
    return last if partition.final.get(last) == send.values[-1] else -1


def unreadable_at_the_end(index: Index) -> Iterator[Anomaly]:
    """Faults are over and somebody reads everything: to the end of what was acknowledged. Who reads only what is
    committed comes as far, for no transaction is left open."""
    if index.history.final is None:
        return
    reach = final_committed_reads(index)[1] if index.transactional else {}
    for partition in index.partitions.values():
        end = min(partition.final_end, reach.get(partition.place, partition.final_end))
        beyond = [one for one in partition.sends if _lies_beyond(partition, one, end)]
        if beyond:
            finals = [one for one in index.polls if one.begun > index.history.final and _asks(one, partition.place)]
            yield anomaly(
                "unreadable at the end",
                f"The final reads of {partition_name(partition.place)} ended at offset {end}; {len(beyond)} "
                "acknowledged batches at or after it are missing, and no power loss or deletion explains it.",
                beyond[0],
                beyond[-1],
                *finals[-3:],
            )


def _lies_beyond(partition: PartitionIndex, operation: Operation, end: int) -> bool:
    send = operation.action
    if not isinstance(send, Send) or send.base_offset is None or not acknowledged(operation):
        return False
    last = send.base_offset + len(send.values) - 1
    return (
        last >= end
        and not partition.may_have_lost(last, acknowledged_since(operation), NEVER)
        and not partition.may_be_deleted(last, operation.begun)
    )


def _asks(operation: Operation, place: Place) -> bool:
    assert isinstance(operation.action, Poll)
    return place in operation.action.positions or any(read.place == place for read in operation.action.reads)


def corrupt_reads(index: Index) -> Iterator[Anomaly]:
    """Whatever happens to a disk, what has a wrong CRC is not given out."""
    for operation in index.corrupt:
        corrupt = operation.action
        assert isinstance(corrupt, Corrupt)
        text = f"{operation.process} read corrupt data at offset {corrupt.offset} of {partition_name(corrupt.place)}"
        yield anomaly("corrupt read", f"{text}: {corrupt.reason}.", operation)


def unflushed_acknowledgements(index: Index) -> Iterator[Anomaly]:
    """Under flush.before.ack: what the first Loss after an acknowledgement must not take, and may have."""
    for partition in index.partitions.values():
        for operation in partition.sends:
            send = operation.action
            assert isinstance(send, Send)
            if send.base_offset is None or not acknowledged(operation) or operation.ended is None:
                continue
            last = send.base_offset + len(send.values) - 1
            if partition.may_be_deleted(last, operation.begun):
                continue
            if partition.may_have_lost(last, operation.ended, NEVER):
                yield anomaly(
                    "unflushed acknowledgement",
                    f"{shorten(send.values)} of {partition_name(partition.place)} was acknowledged at offset "
                    f"{send.base_offset} before it was durable.",
                    operation,
                    _loss_after(index, partition, operation.ended, last),
                )


def unflushed_reads(index: Index) -> Iterator[Anomaly]:
    """Under flush.before.ack: a consumer sees only what is durable."""
    lowest = {
        place: _lowest_floors(partition) for place, partition in index.partitions.items() if partition.possible_losses
    }
    if not lowest:
        return
    for operation in index.polls:
        assert isinstance(operation.action, Poll)
        if operation.ended is None or operation.outcome is not Outcome.OK:
            continue
        for read in operation.action.reads:
            if read.place not in lowest:
                continue
            steps, floors = lowest[read.place]
            after = bisect_right(steps, operation.ended)
            if after < len(floors) and floors[after] <= read.offset:
                partition = index.partitions[read.place]
                sender = index.senders.get(read.value)
                if partition.may_be_deleted(read.offset, operation.begun if sender is None else sender.begun):
                    continue
                yield anomaly(
                    "unflushed read",
                    f"{operation.process} read {read.value} at offset {read.offset} of {partition_name(read.place)} "
                    "before it was durable.",
                    operation,
                    _loss_after(index, partition, operation.ended, read.offset),
                )
                break


def _lowest_floors(partition: PartitionIndex) -> tuple[list[int], list[int]]:
    """The steps of the losses, and the lowest floor from each of them on."""
    floors = list(accumulate((cut.floor for cut in reversed(partition.possible_losses)), min))
    return [cut.step for cut in partition.possible_losses], floors[::-1]


def _loss_after(index: Index, partition: PartitionIndex, step: int, offset: int) -> Operation:
    cut = next(cut for cut in partition.possible_losses if cut.step > step and cut.floor <= offset)
    return next(loss for loss in index.losses if loss.begun == cut.step)
