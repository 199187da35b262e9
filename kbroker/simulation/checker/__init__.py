"""Checks a history: returns all its anomalies, in the style of Jepsen's Kafka workload.

Each value is sent once, so the send of every record that was read is known. Each check permits what Kafka permits, and
its docstring says why. What a crash may lose is exact: nothing without a Loss in the history, and otherwise the records
that the Loss names, if they were written before it.
"""

from collections.abc import Iterator, Mapping

from kbroker.simulation.checker.anomaly import Anomaly, render
from kbroker.simulation.checker.durability import (
    corrupt_reads,
    deleted_record_reads,
    lost_writes,
    unflushed_acknowledgements,
    unflushed_reads,
    unreadable_at_the_end,
)
from kbroker.simulation.checker.groups import committed_offset_anomalies, group_fencing_anomalies
from kbroker.simulation.checker.history import History
from kbroker.simulation.checker.index import Index, build_index
from kbroker.simulation.checker.ownership import fenced_members, ownership_anomalies
from kbroker.simulation.checker.permissions import permission_anomalies
from kbroker.simulation.checker.polls import poll_order_anomalies, stale_polls
from kbroker.simulation.checker.record_offsets import (
    backward_sends,
    duplicates,
    inconsistent_offsets,
    torn_batches,
    unsent_values,
)
from kbroker.simulation.checker.transactions import (
    exactly_once_anomalies,
    torn_transactions,
    uncommitted_reads,
    write_read_cycles,
)

__all__ = ["Anomaly", "check", "render"]


def check(
    history: History,
    *,
    durable: bool,
    durable_groups: bool | None = None,
    compacted: Mapping[str, int] | None = None,
    replicated: bool = False,
    archived: bool = False,
) -> list[Anomaly]:
    """Return the anomalies of a history, the most severe first. `durable`: flush.before.ack is on for all topics, so a
    Loss must not affect acknowledged records (such a history must have no bit rot). `durable_groups`: the same for
    __consumer_offsets, where it differs. `compacted`: the number of keys of each compacted topic. `replicated`:
    partitions have several replicas, so reads may come from a former leader that does not know it was replaced.
    `archived`: a poll may be empty because the archive is being read. Takes 5 to 20 µs per operation, depending on its
    number of records."""
    index = build_index(history, compacted, replicated=replicated)
    groups = durable if durable_groups is None else durable_groups
    return [
        *_record_anomalies(index, durable=durable, archived=archived),
        *committed_offset_anomalies(index, durable=groups),
        *group_fencing_anomalies(index, durable=groups),
        *ownership_anomalies(index, durable=groups),
        *fenced_members(index, durable=groups),
        *exactly_once_anomalies(index, durable=durable and groups),
        *permission_anomalies(index),
    ]


def _record_anomalies(index: Index, *, durable: bool, archived: bool) -> Iterator[Anomaly]:
    yield from lost_writes(index)
    yield from unreadable_at_the_end(index)
    if durable:
        yield from unflushed_acknowledgements(index)
        yield from unflushed_reads(index)
    yield from deleted_record_reads(index)
    yield from corrupt_reads(index)
    yield from unsent_values(index)
    seen = index.observations(
        {partition.tp: partition.conflicting_offsets for partition in index.partitions.values()},
        [value for partition in index.partitions.values() for value in partition.moved_values],
    )
    yield from inconsistent_offsets(index, seen)
    yield from duplicates(index, seen)
    yield from torn_batches(index)
    yield from poll_order_anomalies(index)
    if not (index.replicated or archived):
        yield from stale_polls(index)
    yield from backward_sends(index)
    yield from uncommitted_reads(index)
    yield from torn_transactions(index)
    yield from write_read_cycles(index)
