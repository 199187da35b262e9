"""What was deleted stays deleted: a DeleteRecords that was answered is durable here, though Apache Kafka writes down a
log's start only now and then, so that a crash brings records back.

Not judged: after a Loss that gave the offsets out anew.
"""

from bisect import bisect_left
from collections.abc import Iterator

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import Operation, Outcome, Poll, Trim
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex


def deleted_records(index: Index) -> Iterator[Anomaly]:
    """Polls that begin after a deletion has been answered, and give what was deleted."""
    trims = {partition.tp: _answered(partition) for partition in index.partitions.values() if _answered(partition)}
    if not trims:
        return
    for poll in index.polls:
        assert isinstance(poll.action, Poll)
        for tp, offset in {read.tp: read.offset for read in reversed(poll.action.reads)}.items():
            trim = _last_before(trims.get(tp, []), poll.begun)
            if trim is None or offset >= _before(trim):
                continue
            until = NEVER if poll.ended is None else poll.ended
            if not index.partition(tp).may_have_lost(offset, trim.begun, until):
                yield anomaly(
                    "deleted record",
                    f"{poll.process} received offset {offset} of {partition_name(tp)} after the records before "
                    f"offset {_before(trim)} had been deleted.",
                    trim,
                    poll,
                )


def _answered(partition: PartitionIndex) -> list[Operation]:
    """The deletions that were done, in the order of their answers, each with a later offset than those before."""
    found: list[Operation] = []
    for trim in sorted(partition.trims, key=lambda one: one.ended or NEVER):
        if trim.outcome is Outcome.OK and (not found or _before(trim) > _before(found[-1])):
            found.append(trim)
    return found


def _before(trim: Operation) -> int:
    assert isinstance(trim.action, Trim)
    return trim.action.before


def _last_before(trims: list[Operation], step: int) -> Operation | None:
    count = bisect_left(trims, step, key=lambda one: one.ended or NEVER)
    return trims[count - 1] if count else None
