"""Offsets and values of records: inconsistent offsets, duplicates, unsent values, backward sends, torn batches."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, shorten
from kbroker.simulation.checker.history import Operation, OperationOf, Outcome, Send, TopicPartition, partition_name
from kbroker.simulation.checker.index import (
    NEVER,
    Index,
    LastOffsets,
    Observation,
    Observations,
    PartitionIndex,
    acknowledged_since,
    effect_end,
    end_offset,
    ended,
)

# A value with more offsets is always a duplicate: each move would need a power loss while the batch is being sent.
MOST_MOVES = 5


def inconsistent_offsets(index: Index, seen: Observations) -> Iterator[Anomaly]:
    """Report offsets with several values that `can_hold` does not explain. `seen`: all observations of these
    offsets."""
    for partition in index.partitions.values():
        for offset in partition.conflicting_offsets:
            observations = seen.by_offset[partition.tp, offset]
            if can_hold(observations, [loss.step for loss in partition.possible_losses if loss.floor <= offset], index):
                continue
            values = list(dict.fromkeys(observation.value for observation in observations))
            yield anomaly(
                "inconsistent offsets",
                f"{partition_name(partition.tp)} has had the values {shorten(values)} at offset {offset}, and no "
                "power loss explains it.",
                *_first_and_last(observations, lambda observation: observation.value),
            )


def can_hold(observations: Sequence[Observation], loss_steps: Sequence[int], index: Index) -> bool:
    """Return whether one offset can have held these values, one at a time.

    A Loss with a floor at or below the offset may remove the value, and the offset may be assigned again. So the losses
    divide time into eras, each with at most one value. A value is present from its first observation to its last, and
    in all eras between them. The era of an observation that overlaps a loss is not known exactly. A value that was lost
    can return only if its producer was still retrying at the time of the loss.
    """
    spans: list[tuple[int, int, int]] = []
    points: list[tuple[int, int, int]] = []
    by_write_key: dict[tuple[int, tuple[int, int]], list[tuple[int, int]]] = {}
    for observation in observations:
        first, last = bisect_left(loss_steps, observation.since), bisect_left(loss_steps, observation.until)
        by_write_key.setdefault(
            (observation.value, _write_key(index.senders.get(observation.value), loss_steps, first, last)), []
        ).append((first, last))
    for (value, _), eras in by_write_key.items():
        begin, end = min(last for _, last in eras), max(first for first, _ in eras)
        if begin <= end:
            spans.append((begin, end, value))
        else:
            points.append((end, begin, value))
    held: dict[int, int] = {}
    for begin, end, value in spans:
        for era in range(begin, end + 1):
            if held.setdefault(era, value) != value:
                return False
    return _fit(points, held)


def _fit(points: Sequence[tuple[int, int, int]], held: Mapping[int, int]) -> bool:
    """Return whether each (first era, last era, value) can be placed in one of its eras. `held`: the value of each used
    era."""
    if not points:
        return True
    first, last, value = points[0]
    free = [era for era in range(first, last + 1) if held.get(era, value) == value]
    return any(_fit(points[1:], {**held, era: value}) for era in sorted(free, key=lambda era: era not in held))


def _write_key(sender: OperationOf[Send] | None, loss_steps: Sequence[int], first: int, last: int) -> tuple[int, int]:
    """Return a key for the write that an observation belongs to. A batch that is retried after a Loss, because its
    response was lost, may be written a second time. Observations of the same write have the same key; an observation
    that may belong to either has a key of its own."""
    if sender is None:
        return 0, 0
    end = effect_end(sender)
    rewrite_eras = [era for era, step in enumerate(loss_steps, 1) if sender.begun < step < end]
    if not rewrite_eras:
        return 0, 0
    if first != last:
        return first, last
    written_in = max((era for era in rewrite_eras if era <= first), default=0)
    return written_in, written_in


def duplicates(index: Index, seen: Observations) -> Iterator[Anomaly]:
    """Report values at several offsets. `seen`: all observations of these values.

    Permitted: duplicates by retries of a producer that is not idempotent, as in Kafka; a batch that a Loss removed and
    a retry wrote again.
    """
    for partition in index.partitions.values():
        reported: dict[int, None] = {}
        for value in partition.moved_values:
            sender = index.senders.get(value)
            if sender is None or not sender.action.idempotent:
                continue
            observations = seen.by_value[value]
            offsets = list(dict.fromkeys(observation.offset for observation in observations))
            if sender.number in reported or _may_move(partition, observations, offsets, sender):
                continue
            reported[sender.number] = None
            acknowledged_at = [observation.offset for observation in observations if observation.operation is sender]
            if acknowledged_at and len(offsets) == 2:
                other = next(
                    observation.offset for observation in observations if observation.offset != acknowledged_at[0]
                )
                kind = "inconsistent offsets"
                text = f"was acknowledged at offset {acknowledged_at[0]} and read at {other}"
            else:
                kind, text = "duplicate", f"of an idempotent producer is at the offsets {shorten(offsets)}"
            yield anomaly(
                kind,
                f"The value {value} of {partition_name(partition.tp)} {text}.",
                *_first_and_last(observations, lambda observation: observation.offset),
                sender,
            )


def _may_move(
    partition: PartitionIndex, observations: list[Observation], offsets: list[int], sender: Operation
) -> bool:
    """Return whether the value can have been at one offset at a time, and moved to each next offset because a Loss
    removed it while its producer was still retrying."""
    if len(offsets) > MOST_MOVES:
        return False
    possible_losses = [loss for loss in partition.possible_losses if sender.begun < loss.step < effect_end(sender)]
    floors = [*(loss.floor for loss in possible_losses), NEVER]
    # The offset of each observation, and the intervals between losses in which it can have been made.
    times = list(pairwise([-1, *(loss.step for loss in possible_losses), NEVER]))
    seen = {
        (
            observation.offset,
            tuple(
                i for i, (after, before) in enumerate(times) if observation.since < before and observation.until > after
            ),
        )
        for observation in observations
    }
    # The possible offsets in an interval, each with the observations that are explained so far.
    states = {(offset, frozenset[object]()) for offset in offsets}
    for i in range(len(times)):
        now = {
            (at, reported | {observation for observation in seen if observation[0] == at and i in observation[1]})
            for at, reported in states
        }
        if any(reported == seen for _, reported in now):
            return True
        states = now | {(new, reported) for at, reported in now if floors[i] <= at for new in offsets}
    return False


def unsent_values(index: Index) -> Iterator[Anomaly]:
    """Report values that were never sent, that the broker rejected, or that were sent to another partition."""
    wrong: dict[int, tuple[str, OperationOf[Send] | None]] = {}
    for partition in index.partitions.values():
        for value, offset in partition.offset_of.items():
            sender = index.senders.get(value)
            why = _why_wrong(sender, partition.tp)
            if why:
                wrong[value] = (
                    f"{partition_name(partition.tp)} has at offset {offset} the value {value}, {why}.",
                    sender,
                )
    if wrong:
        seen = index.observations({}, wrong)
        for value, (text, sender) in wrong.items():
            readers = [
                observation.operation for observation in seen.by_value[value] if observation.operation is not sender
            ]
            yield anomaly("unsent value", text, readers[0], sender)


def _why_wrong(sender: OperationOf[Send] | None, tp: TopicPartition) -> str:
    if sender is None:
        return "which was never sent"
    if sender.outcome is Outcome.FAILED:
        return "although the broker rejected it"
    if sender.action.tp != tp:
        return f"which was sent to {partition_name(sender.action.tp)}"
    return ""


def backward_sends(index: Index) -> Iterator[Anomaly]:
    """Report batches of an idempotent producer that are not in the order in which they were sent."""
    for partition in index.partitions.values():
        last: dict[str, OperationOf[Send]] = {}
        for operation in partition.sends:
            send = operation.action
            if not send.idempotent or send.base_offset is None or not end_offset(operation):
                continue
            before = last.get(operation.process)
            last[operation.process] = operation
            # A lower order number belongs to a new producer.
            if before is None or send.order <= before.action.order or send.base_offset >= end_offset(before):
                continue
            # A Loss of the first batch makes its offsets free again.
            if not partition.may_have_lost(end_offset(before) - 1, acknowledged_since(before), ended(operation)):
                yield anomaly(
                    "backward sends",
                    f"{operation.process} sent #{before.action.order} and then #{send.order} to "
                    f"{partition_name(partition.tp)}, which has them at the offsets {before.action.base_offset} and "
                    f"{send.base_offset}.",
                    before,
                    operation,
                )


def torn_batches(index: Index) -> Iterator[Anomaly]:
    """Report batches of which the final polls returned only some records: batches are written and lost atomically."""
    for partition in index.partitions.values():
        if not partition.final:
            continue
        found = {value: offset for offset, value in partition.final.items()}
        end = partition.final_end
        last = LastOffsets(partition)
        for operation in partition.sends:
            send = operation.action
            offsets = list(map(found.get, send.values))
            first = offsets[0]
            if first is not None and offsets == list(range(first, first + len(offsets))):
                continue
            present = [(i, offset) for i, offset in enumerate(offsets) if offset is not None]
            if not present:
                continue
            bases = list(dict.fromkeys(offset - i for i, offset in present))
            # Deletion and compaction may remove records of a batch, and the final polls may end within it.
            missing = [
                value
                for i, value in enumerate(send.values)
                if value not in found
                and bases[0] + i < end
                and not partition.may_be_deleted(bases[0] + i, operation.begun)
                and not last.is_superseded(value, bases[0] + i)
            ]
            if len(bases) > 1 or missing:
                yield anomaly(
                    "torn batch",
                    f"Of the batch {shorten(send.values)} in {partition_name(partition.tp)}, which has "
                    f"{len(send.values)} records, only records {shorten([i for i, _ in present])} are present, at "
                    f"offsets {shorten([offset for _, offset in present])}.",
                    operation,
                    *_readers(index, present, send),
                )


def _readers(index: Index, present: list[tuple[int, int]], send: Send) -> list[Operation]:
    seen = index.observations({}, [send.values[i] for i, _ in present])
    return [observation.operation for observations in seen.by_value.values() for observation in observations[-2:]]


def _first_and_last(observations: Sequence[Observation], key: Callable[[Observation], int]) -> list[Operation]:
    """Return the operations of the first and the last observation of each key."""
    by_key: dict[int, list[Observation]] = {}
    for observation in observations:
        by_key.setdefault(key(observation), []).append(observation)
    return [observation.operation for found in by_key.values() for observation in (found[0], found[-1])]
