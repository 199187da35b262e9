"""One value at one offset: inconsistent offsets, duplicates, values that nobody sent, backward sends, torn batches."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.compaction import LastOffsets
from kbroker.simulation.checker.history import Operation, Outcome, Place, Send
from kbroker.simulation.checker.index import (
    NEVER,
    Index,
    Observation,
    Observations,
    PartitionIndex,
    acknowledged,
    acknowledged_since,
    effect_end,
)

# More offsets of one value are not explained: it would take as many power losses while one batch is sent.
MOST_MOVES = 5


def inconsistent_offsets(index: Index, seen: Observations) -> Iterator[Anomaly]:
    """An offset with several values, judged by `can_hold`. `seen` has all sightings of contested offsets."""
    for partition in index.partitions.values():
        for offset in partition.conflicting_offsets:
            observations = seen.by_offset[partition.place, offset]
            if can_hold(observations, _steps_that_cut(partition, offset), index):
                continue
            values = list(dict.fromkeys(one.value for one in observations))
            yield anomaly(
                "inconsistent offsets",
                f"{partition_name(partition.place)} has had the values {shorten(values)} at offset {offset}, and no "
                "power loss explains it.",
                *_first_and_last(observations),
            )


def can_hold(observations: Sequence[Observation], possible_losses: Sequence[int], index: Index) -> bool:
    """Whether one offset can have been seen with these values, one at a time.

    A Loss with a floor at or below the offset may take the value, and the offset may be given out anew. So the losses
    cut time into eras, of which each has one value at most. A value is there from its first sighting to its last,
    also in the eras between; of a sighting during a loss it is not known in which of the two eras it was. A value
    that was gone can come back only if its producer was still trying when the loss came.
    """
    stays: list[tuple[int, int, int]] = []
    points: list[tuple[int, int, int]] = []
    by_life: dict[tuple[int, tuple[int, int]], list[tuple[int, int]]] = {}
    for one in observations:
        first, last = bisect_left(possible_losses, one.since), bisect_left(possible_losses, one.until)
        by_life.setdefault((one.value, _life(index.senders.get(one.value), possible_losses, first, last)), []).append(
            (first, last)
        )
    for (value, _), eras in by_life.items():
        begin, end = min(last for _, last in eras), max(first for first, _ in eras)
        if begin <= end:
            stays.append((begin, end, value))
        else:
            points.append((end, begin, value))
    held: dict[int, int] = {}
    for begin, end, value in stays:
        for era in range(begin, end + 1):
            if held.setdefault(era, value) != value:
                return False
    return _fit(points, held)


def _fit(points: Sequence[tuple[int, int, int]], held: Mapping[int, int]) -> bool:
    """Whether each of the (first era, last era, value) can have one of its eras, of which some are held."""
    if not points:
        return True
    first, last, value = points[0]
    free = [era for era in range(first, last + 1) if held.get(era, value) == value]
    return any(_fit(points[1:], {**held, era: value}) for era in sorted(free, key=lambda era: era not in held))


def _life(sender: Operation | None, possible_losses: Sequence[int], first: int, last: int) -> tuple[int, int]:
    """Which of a batch's lives a sighting is of: a batch that is sent again after a Loss, because its answer never
    came, may be written a second time. Sightings of one life have the same key; one of which it is not known has its
    own."""
    if sender is None:
        return 0, 0
    end = effect_end(sender)
    reborn = [era for era, step in enumerate(possible_losses, 1) if sender.begun < step < end]
    if not reborn:
        return 0, 0
    if first != last:
        return first, last
    born = max((era for era in reborn if era <= first), default=0)
    return born, born


def duplicates(index: Index, seen: Observations) -> Iterator[Anomaly]:
    """A value at two offsets. `seen` has all sightings of moved values.

    Of a producer that is not idempotent a retry doubles the batch, as in Kafka: that is permitted. So is a batch that
    was lost with the power and written again by a retry.
    """
    for partition in index.partitions.values():
        told: dict[int, None] = {}
        for value in partition.moved_values:
            sender = index.senders.get(value)
            if sender is None or not isinstance(sender.action, Send) or not sender.action.idempotent:
                continue
            observations = seen.by_value[value]
            offsets = list(dict.fromkeys(one.offset for one in observations))
            if sender.number in told or _may_move(partition, observations, offsets, sender):
                continue
            told[sender.number] = None
            acknowledged_at = [one.offset for one in observations if one.operation is sender]
            if acknowledged_at and len(offsets) == 2:
                other = next(one.offset for one in observations if one.offset != acknowledged_at[0])
                kind = "inconsistent offsets"
                text = f"was acknowledged at offset {acknowledged_at[0]} and is at {other}"
            else:
                kind, text = "duplicate", f"of an idempotent producer is at the offsets {shorten(offsets)}"
            yield anomaly(
                kind, f"The value {value} of {partition_name(partition.place)} {text}.", *_of_each(observations), sender
            )


def _may_move(
    partition: PartitionIndex, observations: list[Observation], offsets: list[int], sender: Operation
) -> bool:
    """Whether it was at one offset at a time, and from each to the next came by a Loss that took it and during which
    the producer was still trying."""
    if len(offsets) > MOST_MOVES:
        return False
    possible_losses = [cut for cut in partition.possible_losses if sender.begun < cut.step < effect_end(sender)]
    floors = [*(cut.floor for cut in possible_losses), NEVER]
    # Each sighting is of one of the times between Losses: by its offset, those times that it can be of.
    times = list(pairwise([-1, *(cut.step for cut in possible_losses), NEVER]))
    seen = {
        (one.offset, tuple(i for i, (after, before) in enumerate(times) if one.since < before and one.until > after))
        for one in observations
    }
    # Where it can have been in a time, with the sightings that are explained so far.
    states = {(offset, frozenset[object]()) for offset in offsets}
    for i in range(len(times)):
        now = {(at, told | {one for one in seen if one[0] == at and i in one[1]}) for at, told in states}
        if any(told == seen for _, told in now):
            return True
        states = now | {(new, told) for at, told in now if floors[i] <= at for new in offsets}
    return False


def unsent_values(index: Index) -> Iterator[Anomaly]:
    """What nobody sent, what was refused, and what was sent to another partition."""
    wrong: dict[int, tuple[str, Operation | None]] = {}
    for partition in index.partitions.values():
        for value, offset in partition.where.items():
            sender = index.senders.get(value)
            why = _why_wrong(sender, partition.place)
            if why:
                wrong[value] = (
                    f"{partition_name(partition.place)} has at offset {offset} the value {value}, {why}.",
                    sender,
                )
    if wrong:
        seen = index.observations({}, wrong)
        for value, (text, sender) in wrong.items():
            readers = [one.operation for one in seen.by_value[value] if one.operation is not sender]
            yield anomaly("unsent value", text, readers[0], sender)


def _why_wrong(sender: Operation | None, place: Place) -> str:
    if sender is None:
        return "which nobody sent"
    assert isinstance(sender.action, Send)
    if sender.outcome is Outcome.FAILED:
        return "although the broker had refused it"
    if sender.action.place != place:
        return f"which was sent to {partition_name(sender.action.place)}"
    return ""


def backward_sends(index: Index) -> Iterator[Anomaly]:
    """Batches of one idempotent producer lie in the partition in the order in which they were sent."""
    for partition in index.partitions.values():
        last: dict[str, Operation] = {}
        for operation in partition.sends:
            send = operation.action
            assert isinstance(send, Send)
            if not send.idempotent or send.base_offset is None or not acknowledged(operation):
                continue
            before = last.get(operation.process)
            last[operation.process] = operation
            if before is None or not isinstance(before.action, Send) or before.action.base_offset is None:
                continue
            # An order that begins anew is another producer's.
            end = before.action.base_offset + len(before.action.values)
            if send.order <= before.action.order or send.base_offset >= end:
                continue
            # A Loss that took the first of them gave its offsets back.
            until = NEVER if operation.ended is None else operation.ended
            if not partition.may_have_lost(end - 1, acknowledged_since(before), until):
                yield anomaly(
                    "backward sends",
                    f"{operation.process} sent #{before.action.order} and then #{send.order} to "
                    f"{partition_name(partition.place)}, which has them at the offsets {before.action.base_offset} and "
                    f"{send.base_offset}.",
                    before,
                    operation,
                )


def torn_batches(index: Index) -> Iterator[Anomaly]:
    """A batch is there wholly, one record after the other, or not at all: it is written and lost as one."""
    for partition in index.partitions.values():
        if not partition.final:
            continue
        found = {value: offset for offset, value in partition.final.items()}
        end = partition.final_end
        last = LastOffsets(partition.final, partition.keys)
        for operation in partition.sends:
            send = operation.action
            assert isinstance(send, Send)
            offsets = list(map(found.get, send.values))
            first = offsets[0]
            if first is not None and offsets == list(range(first, first + len(offsets))):
                continue
            there = [(i, offset) for i, offset in enumerate(offsets) if offset is not None]
            if not there:
                continue
            bases = list(dict.fromkeys(offset - i for i, offset in there))
            # Deletion and compaction may remove a part of a batch, and a reader may stop within it.
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
                    f"Of the batch {shorten(send.values)} in {partition_name(partition.place)}, which has "
                    f"{len(send.values)} records, only records {shorten([i for i, _ in there])} are present, at "
                    f"offsets {shorten([offset for _, offset in there])}.",
                    operation,
                    *_readers(index, there, send),
                )


def _readers(index: Index, there: list[tuple[int, int]], send: Send) -> list[Operation]:
    seen = index.observations({}, [send.values[i] for i, _ in there])
    return [one.operation for observations in seen.by_value.values() for one in observations[-2:]]


def _first_and_last(observations: Sequence[Observation]) -> list[Operation]:
    """Of each value the first and the last sighting."""
    by_value: dict[int, list[Observation]] = {}
    for one in observations:
        by_value.setdefault(one.value, []).append(one)
    return [one.operation for found in by_value.values() for one in (found[0], found[-1])]


def _of_each(observations: Sequence[Observation]) -> list[Operation]:
    """Of each offset the first and the last sighting."""
    by_offset: dict[int, list[Observation]] = {}
    for one in observations:
        by_offset.setdefault(one.offset, []).append(one)
    return [one.operation for found in by_offset.values() for one in (found[0], found[-1])]


def _steps_that_cut(partition: PartitionIndex, offset: int) -> list[int]:
    return [cut.step for cut in partition.possible_losses if cut.floor <= offset]
