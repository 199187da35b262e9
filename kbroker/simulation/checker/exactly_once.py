"""Exactly-once: each input record of a consume-transform-produce group has exactly one committed result.

Programs read with a consumer group, write one result per record, and commit the group's offsets in the same
transaction. The final state is checked, so lost responses do not matter: each record before the committed offset has
one result, and each later record has none. If a Loss may have removed records, nothing is checked. If all acknowledged
records are durable, a Loss is no excuse, because a result is read only after it is committed.
"""

from collections.abc import Iterator, Mapping

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.history import OffsetFetch, Operation, Outcome, Send, TopicPartition
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex
from kbroker.simulation.checker.transactions import final_committed_reads

# An input record: its partition and offset.
Source = tuple[TopicPartition, int]


def exactly_once_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report input records with several results, or whose result and committed offset do not match.

    `durable`: a Loss does not remove acknowledged records.
    """
    if index.history.final is None or (index.losses and not durable):
        return
    results = _results(index)
    if not results:
        return
    committed = _committed(index, results)
    visible, _ = final_committed_reads(index)
    for group, sources in results.items():
        visible_results = {
            source: [result for result in sends if result[0] in visible] for source, sends in sources.items()
        }
        yield from _duplicate_results(group, visible_results)
        if group in committed:
            yield from _mismatched_offsets(index, group, visible_results, committed[group], visible)


def _results(index: Index) -> dict[str, dict[Source, list[tuple[int, Operation]]]]:
    """Return the results of each group and input record: their values and Send operations."""
    results: dict[str, dict[Source, list[tuple[int, Operation]]]] = {}
    for partition in index.partitions.values():
        for operation in partition.sends:
            send = operation.action
            assert isinstance(send, Send)
            for value, source in zip(send.values, send.sources, strict=False):
                results.setdefault(send.group, {}).setdefault(source, []).append((value, operation))
    return results


def _committed(index: Index, groups: Mapping[str, object]) -> dict[str, Operation]:
    """Return the final OffsetFetch of each group."""
    final = NEVER if index.history.final is None else index.history.final
    return {
        operation.action.group: operation
        for operation in index.offset_fetches
        if isinstance(operation.action, OffsetFetch) and operation.action.group in groups
        if operation.begun > final and operation.outcome is Outcome.OK
    }


def _duplicate_results(group: str, results: Mapping[Source, list[tuple[int, Operation]]]) -> Iterator[Anomaly]:
    for (tp, offset), sends in results.items():
        if len(sends) > 1:
            yield anomaly(
                "transformed twice",
                f"{group} has several committed results for offset {offset} of {partition_name(tp)}: "
                f"{shorten([value for value, _ in sends])}.",
                *(operation for _, operation in sends),
            )


def _mismatched_offsets(
    index: Index,
    group: str,
    results: Mapping[Source, list[tuple[int, Operation]]],
    committed: Operation,
    visible: Mapping[int, None],
) -> Iterator[Anomaly]:
    assert isinstance(committed.action, OffsetFetch)
    for tp, end in committed.action.offsets.items():
        partition = index.partition(tp)
        early = [offset for (at, offset), sends in results.items() if at == tp and sends and offset >= end]
        if early:
            yield anomaly(
                "result without its offset",
                f"{group} has results for offsets {shorten(sorted(early))} of {partition_name(tp)}, but committed "
                f"offset {end}.",
                *(operation for offset in early[:3] for _, operation in results[tp, offset]),
                committed,
            )
        missing = [offset for offset in _visible_before(partition, end, visible) if not results.get((tp, offset))]
        if missing:
            yield anomaly(
                "offset without its result",
                f"{group} committed offset {end} of {partition_name(tp)}, but has no result for offsets "
                f"{shorten(missing)}.",
                committed,
                *(index.senders.get(partition.final[offset]) for offset in missing[:3]),
            )


def _visible_before(partition: PartitionIndex, end: int, visible: Mapping[int, None]) -> list[int]:
    """Return the offsets before `end` that the final polls with read_committed returned. A partition with deleted
    records has none, because the group may not have read them before the deletion."""
    if partition.deletions:
        return []
    return sorted(offset for offset, value in partition.final.items() if offset < end and value in visible)
