"""Deleted records: a record before the offset of an acknowledged DeleteRecords must not be read again.

The broker syncs the log start offset before it acknowledges. (Apache Kafka writes it periodically, so a crash brings
deleted records back there.) Offsets that a Loss made free may hold new records, so these are not checked.
"""

from bisect import bisect_left
from collections.abc import Iterator

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import DeleteRecords, Operation, Outcome, Poll
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex


def deleted_record_reads(index: Index) -> Iterator[Anomaly]:
    """Report polls that began after a deletion was acknowledged and returned a record that it had deleted."""
    deletions = {tp: _acknowledged(partition) for tp, partition in index.partitions.items() if partition.deletions}
    if not deletions:
        return
    for poll in index.polls:
        assert isinstance(poll.action, Poll)
        for tp, offset in {read.tp: read.offset for read in reversed(poll.action.reads)}.items():
            deletion = _last_ended_before(deletions.get(tp, []), poll.begun)
            if deletion is None or offset >= _end(deletion):
                continue
            until = NEVER if poll.ended is None else poll.ended
            if not index.partition(tp).may_have_lost(offset, deletion.begun, until):
                yield anomaly(
                    "deleted record",
                    f"{poll.process} received offset {offset} of {partition_name(tp)} after the records before "
                    f"offset {_end(deletion)} had been deleted.",
                    deletion,
                    poll,
                )


def _acknowledged(partition: PartitionIndex) -> list[Operation]:
    """Return the acknowledged deletions in the order of their ends, without those that deleted nothing more."""
    acknowledged: list[Operation] = []
    for deletion in sorted(partition.deletions, key=_ended):
        if deletion.outcome is Outcome.OK and (not acknowledged or _end(deletion) > _end(acknowledged[-1])):
            acknowledged.append(deletion)
    return acknowledged


def _end(deletion: Operation) -> int:
    """Return the offset before which it deletes."""
    assert isinstance(deletion.action, DeleteRecords)
    return deletion.action.before


def _ended(deletion: Operation) -> int:
    return deletion.ended or NEVER


def _last_ended_before(deletions: list[Operation], step: int) -> Operation | None:
    count = bisect_left(deletions, step, key=_ended)
    return deletions[count - 1] if count else None
