"""A poll that gives nothing has been at the end of everything it asked for.

What was acknowledged before a poll begins can be read by it: the high watermark moves before the acknowledgement is
sent. A poll may give records of one partition and none of another, as sizes are limited; but one that gives no record
at all, and did not fail, has been told that there is none. So a record that was acknowledged before it, at or behind
its position, must not be.

Not judged: polls with read_committed where there are transactions (one that is open holds back what comes after it),
and polls that moved on without a record: they were given what is no record, the markers of transactions' ends, or
batches that compaction has emptied.
In a cluster a new leader may not know the high watermark yet; then this holds from the first time it does.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import Assign, Operation, Outcome, Place, Poll, Send
from kbroker.simulation.checker.index import Index, PartitionIndex, acknowledged, acknowledged_since


def stale_polls(index: Index) -> Iterator[Anomaly]:
    """Walks through acknowledgements and beginnings of polls in their order."""
    events = [(one.ended or 0, one) for one in _sends(index) if acknowledged(one) and _end(one)]
    events += [(one.begun, one) for one in _empty_polls(index)]
    kept: dict[Place, list[Operation]] = defaultdict(list)  # by their ends, the furthest last
    for _, operation in sorted(events, key=lambda event: event[0]):
        action = operation.action
        if isinstance(action, Send):
            partition, sends, now = index.partition(action.place), kept[action.place], operation.ended or 0
            while sends and _may_be_lost(partition, sends[-1], now):
                sends.pop()
            if not _may_be_lost(partition, operation, now):
                insort(sends, operation, key=_end)
        elif isinstance(action, Poll):
            for place, position in action.positions.items():
                partition, now = index.partition(place), operation.ended or 0
                send = next((one for one in reversed(kept[place]) if not _may_be_lost(partition, one, now)), None)
                if send is not None and _end(send) > position:
                    yield anomaly(
                        "stale poll",
                        f"{operation.process} received no records from offset {position} of {partition_name(place)} "
                        f"on, although offset {_end(send) - 1} had been acknowledged before the poll began.",
                        send,
                        operation,
                    )


def _sends(index: Index) -> Iterator[Operation]:
    return (one for partition in index.partitions.values() for one in partition.sends)


def _end(send: Operation) -> int:
    """The offset behind the batch; 0 if it is not known or it is a transaction's."""
    action = send.action
    assert isinstance(action, Send)
    return (
        0 if action.base_offset is None or action.transaction is not None else action.base_offset + len(action.values)
    )


def _empty_polls(index: Index) -> Iterator[Operation]:
    """Those that were given nothing at all."""
    has_gaps = index.transactional or bool(index.compacted)
    for operations in index.consumer_operations.values():
        stood: dict[Place, int] = {}
        for operation in operations:
            action = operation.action
            if isinstance(action, Poll):
                moved = has_gaps and any(stood.get(place, at) < at for place, at in action.positions.items())
                if not moved and _gave_nothing(operation, index.transactional):
                    yield operation
            if isinstance(action, Poll):
                stood.update(action.positions)
            elif isinstance(action, Assign):
                stood = dict(action.positions)


def _gave_nothing(poll: Operation, transactions: bool) -> bool:
    action = poll.action
    assert isinstance(action, Poll)
    return poll.outcome is Outcome.OK and not action.reads and not (transactions and action.committed_only)


def _may_be_lost(partition: PartitionIndex, send: Operation, until: int) -> bool:
    last = _end(send) - 1
    return partition.may_have_lost(last, acknowledged_since(send), until) or partition.may_be_deleted(
        last, send.begun, until
    )
