"""Consume, transform, produce: each record that a group has read has its one result among the committed records.

Programs read with a group, write a result of each record and commit the group's offsets with it, in one transaction.
Judged is what is left at the end, so it does not matter which answers got lost: what lies before the committed offset
has one result, what lies behind it has none. Where something may have been lost with the power nothing is said of that;
where everything acknowledged is durable a Loss excuses nothing, for a result is read only when it is committed.
"""

from collections.abc import Iterator, Mapping

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.history import OffsetFetch, Operation, Outcome, Place, Send
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex
from kbroker.simulation.checker.transactions import final_committed_reads

# A record: its partition and offset.
Source = tuple[Place, int]


def exactly_once_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """`durable`: no Loss takes what was acknowledged."""
    if index.history.final is None or (index.losses and not durable):
        return
    results = _results(index)
    if not results:
        return
    committed = _committed(index, results)
    visible, _ = final_committed_reads(index)
    for group, found in results.items():
        there = {source: [one for one in sends if one[0] in visible] for source, sends in found.items()}
        yield from _twice(group, there)
        if group in committed:
            yield from _not_with_its_offset(index, group, there, committed[group], visible)


def _results(index: Index) -> dict[str, dict[Source, list[tuple[int, Operation]]]]:
    """By group and source: each value that was made of it, and its send."""
    results: dict[str, dict[Source, list[tuple[int, Operation]]]] = {}
    for partition in index.partitions.values():
        for operation in partition.sends:
            send = operation.action
            assert isinstance(send, Send)
            for value, source in zip(send.values, send.sources, strict=False):
                results.setdefault(send.group, {}).setdefault(source, []).append((value, operation))
    return results


def _committed(index: Index, groups: Mapping[str, object]) -> dict[str, Operation]:
    """What each of the groups has committed at the end."""
    final = NEVER if index.history.final is None else index.history.final
    return {
        one.action.group: one
        for one in index.offset_fetches
        if isinstance(one.action, OffsetFetch) and one.action.group in groups
        if one.begun > final and one.outcome is Outcome.OK
    }


def _twice(group: str, there: Mapping[Source, list[tuple[int, Operation]]]) -> Iterator[Anomaly]:
    for (place, offset), found in there.items():
        if len(found) > 1:
            yield anomaly(
                "transformed twice",
                f"{group} has of offset {offset} of {partition_name(place)} the committed results "
                f"{shorten([value for value, _ in found])}.",
                *(operation for _, operation in found),
            )


def _not_with_its_offset(
    index: Index,
    group: str,
    there: Mapping[Source, list[tuple[int, Operation]]],
    committed: Operation,
    visible: Mapping[int, None],
) -> Iterator[Anomaly]:
    assert isinstance(committed.action, OffsetFetch)
    for place, end in committed.action.offsets.items():
        partition = index.partition(place)
        early = [offset for (at, offset), found in there.items() if at == place and found and offset >= end]
        if early:
            yield anomaly(
                "result without its offset",
                f"{group} has results for offsets {shorten(sorted(early))} of {partition_name(place)}, but committed "
                f"offset {end}.",
                *(operation for offset in early[:3] for _, operation in there[place, offset]),
                committed,
            )
        missing = [offset for offset in _visible_before(partition, end, visible) if not there.get((place, offset))]
        if missing:
            yield anomaly(
                "offset without its result",
                f"{group} committed offset {end} of {partition_name(place)}, but has no result for offsets "
                f"{shorten(missing)}.",
                committed,
                *(index.senders.get(partition.final[offset]) for offset in missing[:3]),
            )


def _visible_before(partition: PartitionIndex, end: int, visible: Mapping[int, None]) -> list[int]:
    """The offsets of records that somebody who reads what is committed sees at the end; none where some were deleted
    on purpose, for they may not have been read before."""
    if partition.trims:
        return []
    return sorted(offset for offset, value in partition.final.items() if offset < end and value in visible)
