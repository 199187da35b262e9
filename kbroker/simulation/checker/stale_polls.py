"""Stale polls: a poll without records although a record at or after its position had been acknowledged before it.

The high watermark advances before the acknowledgement is sent, so a poll that begins after an acknowledgement can read
the record. Because response sizes are limited, a poll may return records of one partition and none of another; but a
successful poll that returns no record at all must have been at the end of every partition that it requested.

Not checked: polls while the broker had not synced the recovered records of a partition after its start (UnsyncedStart);
polls with read_committed if the history has transactions (an open transaction holds back later records),
and polls that advanced without a record: they read transaction markers, or batches that compaction emptied.
Replicated partitions are not checked: a new leader may not know the high watermark yet, and a broker that is no longer
the leader may not know that.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import Assign, Operation, Outcome, Poll, Send, TopicPartition, UnsyncedStart
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex, acknowledged, acknowledged_since


def stale_polls(index: Index) -> Iterator[Anomaly]:
    """Compare each empty poll with the sends that were acknowledged before it began."""
    events = [
        (operation.ended or 0, operation) for operation in _sends(index) if acknowledged(operation) and _end(operation)
    ]
    events += [(operation.begun, operation) for operation in _empty_polls(index)]
    acknowledged_sends: dict[TopicPartition, list[Operation]] = defaultdict(list)  # ordered by end offset
    for _, operation in sorted(events, key=lambda event: event[0]):
        action = operation.action
        if isinstance(action, Send):
            partition, sends, now = (
                index.partition(action.tp),
                acknowledged_sends[action.tp],
                operation.ended or 0,
            )
            while sends and _may_be_lost(partition, sends[-1], now):
                sends.pop()
            if not _may_be_lost(partition, operation, now):
                insort(sends, operation, key=_end)
        elif isinstance(action, Poll):
            for tp, position in action.positions.items():
                if _overlaps_unsynced_start(index, tp, operation):
                    continue
                partition, now = index.partition(tp), operation.ended or 0
                sends = acknowledged_sends[tp]
                send = next((send for send in reversed(sends) if not _may_be_lost(partition, send, now)), None)
                if send is not None and _end(send) > position:
                    yield anomaly(
                        "stale poll",
                        f"{operation.process} received no records from offset {position} of {partition_name(tp)} "
                        f"on, although offset {_end(send) - 1} had been acknowledged before the poll began.",
                        send,
                        operation,
                    )


def _overlaps_unsynced_start(index: Index, tp: TopicPartition, poll: Operation) -> bool:
    return any(
        isinstance(start.action, UnsyncedStart)
        and tp in start.action.partitions
        and start.begun < (poll.ended or NEVER)
        and poll.begun < (start.ended or NEVER)
        for start in index.unsynced_starts
    )


def _sends(index: Index) -> Iterator[Operation]:
    return (operation for partition in index.partitions.values() for operation in partition.sends)


def _end(send: Operation) -> int:
    """Return the offset after the batch; 0 if the offset is not known or the batch is transactional."""
    action = send.action
    assert isinstance(action, Send)
    return (
        0 if action.base_offset is None or action.transaction is not None else action.base_offset + len(action.values)
    )


def _empty_polls(index: Index) -> Iterator[Operation]:
    """Return the polls that returned no record and did not advance past control or emptied batches."""
    has_gaps = index.transactional or bool(index.compacted)
    for operations in index.consumer_operations.values():
        positions: dict[TopicPartition, int] = {}
        for operation in operations:
            action = operation.action
            if isinstance(action, Poll):
                advanced = has_gaps and any(positions.get(tp, at) < at for tp, at in action.positions.items())
                if not advanced and _is_empty(operation, index.transactional):
                    yield operation
            if isinstance(action, Poll):
                positions.update(action.positions)
            elif isinstance(action, Assign):
                positions = dict(action.positions)


def _is_empty(poll: Operation, transactions: bool) -> bool:
    action = poll.action
    assert isinstance(action, Poll)
    return poll.outcome is Outcome.OK and not action.reads and not (transactions and action.committed_only)


def _may_be_lost(partition: PartitionIndex, send: Operation, until: int) -> bool:
    last = _end(send) - 1
    return partition.may_have_lost(last, acknowledged_since(send), until) or partition.may_be_deleted(
        last, send.begun, until
    )
