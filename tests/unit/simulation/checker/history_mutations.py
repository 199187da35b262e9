"""Mutations that make a correct history incorrect, each with the anomalies that the checker must report.

A mutation yields the possible changes as (function, arguments...); one of them is applied. It yields only changes that
certainly cause an anomaly: for example, a missing record that a Loss or a deletion may have removed is permitted.
"""

from collections.abc import Callable, Iterator
from operator import setitem
from random import Random
from typing import Any

from kbroker.simulation.checker.history import (
    Assign,
    DeleteRecords,
    History,
    Loss,
    Operation,
    Outcome,
    Poll,
    Read,
    Send,
    TopicPartition,
)

Change = tuple[Any, ...]
Mutation = Callable[[History, Random], bool]
MUTATIONS: dict[str, tuple[Mutation, frozenset[str]]] = {}


def mutation(*kinds: str) -> Callable[[Callable[[History, Random], Iterator[Change]]], None]:
    """Register a mutation. `kinds`: the checker must report at least one of these kinds of anomalies. The mutation
    returns False if it could change nothing."""

    def add(changes: Callable[[History, Random], Iterator[Change]]) -> None:
        def mutate(history: History, random: Random) -> bool:
            possible = list(changes(history, random))
            if not possible:
                return False
            change, *arguments = random.choice(possible)
            change(*arguments)
            return True

        MUTATIONS[changes.__name__] = mutate, frozenset(kinds)

    return add


# Selecting operations.


def of(history: History, kind: type) -> list[Operation]:
    return [operation for operation in history.operations if isinstance(operation.action, kind)]


def is_spared(history: History, tp: TopicPartition, since: int) -> bool:
    """Return whether no Loss or deletion affected this partition after step `since`."""
    losses = [loss for loss in of(history, Loss) if tp in loss.action.floors and loss.begun > since]
    return not losses and not any(deletion.ended > since for deletion in deletions(history, tp))


def deletions(history: History, tp: TopicPartition) -> list[Operation]:
    return [deletion for deletion in of(history, DeleteRecords) if deletion.action.tp == tp]


def is_acknowledged(send: Operation) -> bool:
    return send.outcome is Outcome.OK and send.action.base_offset is not None and send.action.acks != 0


def kept_sends(history: History, *, idempotent: bool = False) -> list[Operation]:
    """Return the sends that were acknowledged with an offset and that no Loss or deletion may have removed."""
    return [
        send
        for send in of(history, Send)
        if is_acknowledged(send) and send.action.transaction is None and send.action.idempotent >= idempotent
        if is_spared(history, send.action.tp, send.begun)
    ]


def reads_of(history: History) -> list[Read]:
    return [read for poll in of(history, Poll) for read in poll.action.reads]


def final_polls(history: History) -> list[Operation]:
    return [poll for poll in of(history, Poll) if poll.begun > history.final]


def final_reads(history: History) -> dict[int, tuple[Poll, Read]]:
    return {read.value: (poll.action, read) for poll in final_polls(history) for read in poll.action.reads}


def polls_and_assignments(history: History, process: str) -> list[Operation]:
    return [each for each in history.operations if each.process == process and isinstance(each.action, Poll | Assign)]


# Mutations.


@mutation("lost write", "skipped records")
def remove_record_from_final_reads(history: History, random: Random) -> Iterator[Change]:
    """Remove a record of an idempotent producer, since a duplicate of another producer's batch may remain."""
    finals = final_reads(history)
    for send in kept_sends(history, idempotent=True):
        poll, read = finals[random.choice(send.action.values)]
        yield poll.reads.remove, read


@mutation("torn batch", "lost write", "skipped records")
def remove_part_of_batch_from_final_reads(history: History, random: Random) -> Iterator[Change]:
    finals = final_reads(history)
    for send in of(history, Send):
        batch = send.action
        is_whole = len(batch.values) > 1 and all(value in finals for value in batch.values)
        if is_whole and batch.idempotent and batch.transaction is None and not deletions(history, batch.tp):
            poll, read = finals[random.choice(batch.values)]
            yield poll.reads.remove, read


@mutation("unreadable at the end", "lost write")
def stop_final_reads_early(history: History, random: Random) -> Iterator[Change]:
    def stop_at(tp: TopicPartition, end: int) -> None:
        for poll in (operation.action for operation in final_polls(history)):
            poll.reads[:] = [read for read in poll.reads if read.tp != tp or read.offset < end]
            if tp in poll.positions:
                poll.positions[tp] = min(end, poll.positions[tp])

    for send in kept_sends(history):
        yield stop_at, send.action.tp, send.action.base_offset


@mutation("backward poll")
def swap_two_reads(history: History, random: Random) -> Iterator[Change]:
    for poll in of(history, Poll):
        reads = poll.action.reads
        for i in range(len(reads) - 1):
            if poll.ended is not None and reads[i].tp == reads[i + 1].tp:
                yield setitem, reads, slice(i, i + 2), [reads[i + 1], reads[i]]


@mutation("backward poll")
def repeat_a_read(history: History, random: Random) -> Iterator[Change]:
    for poll in of(history, Poll):
        if poll.action.reads and poll.ended is not None:
            i = random.randrange(len(poll.action.reads))
            yield poll.action.reads.insert, i, poll.action.reads[i]


@mutation("unsent value")
def read_an_invented_value(history: History, random: Random) -> Iterator[Change]:
    for read in reads_of(history):
        yield setattr, read, "value", -7


@mutation("unsent value")
def move_a_read_to_another_partition(history: History, random: Random) -> Iterator[Change]:
    for read in reads_of(history):
        yield setattr, read, "tp", ("another", 0)


@mutation("unsent value")
def fail_a_send_that_was_read(history: History, random: Random) -> Iterator[Change]:
    values = {read.value for read in reads_of(history)}
    for send in of(history, Send):
        if send.ended is not None and values & set(send.action.values):
            yield setattr, send, "outcome", Outcome.FAILED


@mutation("inconsistent offsets")
def acknowledge_a_wrong_offset(history: History, random: Random) -> Iterator[Change]:
    for send in kept_sends(history, idempotent=True):
        yield setattr, send.action, "base_offset", send.action.base_offset + random.choice([-3, -1, 1, 2, 1_000])


@mutation("skipped records")
def remove_a_poll(history: History, random: Random) -> Iterator[Change]:
    """Remove a poll with acknowledged records between two other polls of the same consumer."""
    kept = {value for send in kept_sends(history, idempotent=True) for value in send.action.values}
    for process in dict.fromkeys(poll.process for poll in of(history, Poll)):
        own = polls_and_assignments(history, process)
        for before, operation, after in zip(own, own[1:], own[2:], strict=False):
            if all(isinstance(each.action, Poll) and each.outcome is Outcome.OK for each in (before, operation, after)):
                for read in operation.action.reads:
                    # The consumer's position is known from the poll before, and the poll after requests the partition.
                    is_known = read.tp in before.action.positions and read.tp in after.action.positions
                    if is_known and read.value in kept and is_spared(history, read.tp, before.begun):
                        yield history.operations.remove, operation


@mutation("stale poll")
def empty_a_poll(history: History, random: Random) -> Iterator[Change]:
    """Remove all records of a poll, although they were acknowledged before it began."""
    kept = kept_sends(history)
    for operation in of(history, Poll):
        poll = operation.action
        if poll.committed_only or operation.outcome is not Outcome.OK or not poll.reads:
            continue
        tp = poll.reads[0].tp
        values = {read.offset: read.value for read in poll.reads if read.tp == tp}
        before = [send.action for send in kept if send.ended < operation.begun and send.action.tp == tp]
        if any(values.get(send.base_offset + i) == value for send in before for i, value in enumerate(send.values)):
            yield _empty, history, operation


def _empty(history: History, operation: Operation) -> None:
    """Restore the old positions too: a poll may advance without a record past transaction markers."""
    own = polls_and_assignments(history, operation.process)
    old: dict[TopicPartition, int] = {}
    for each in own[: own.index(operation)]:
        old = {**(old if isinstance(each.action, Poll) else {}), **each.action.positions}
    poll = operation.action
    for read in reversed(poll.reads):
        poll.positions[read.tp] = read.offset
    poll.positions.update({tp: min(position, old.get(tp, position)) for tp, position in poll.positions.items()})
    poll.reads.clear()


@mutation(
    "lost write", "inconsistent offsets", "unreadable at the end", "duplicate", "skipped records", "reset over records"
)
def understate_a_loss(history: History, random: Random) -> Iterator[Change]:
    """Raise the floor of a Loss, so that it does not explain a missing batch any more."""
    finals, losses = final_reads(history), of(history, Loss)
    missing = [
        send
        for send in of(history, Send)
        if is_acknowledged(send) and send.action.transaction is None and not finals.keys() & set(send.action.values)
        if not any(deletion.ended > send.begun for deletion in deletions(history, send.action.tp))
    ]
    for loss in losses:
        for send in missing:
            tp, end = send.action.tp, send.action.base_offset + len(send.action.values)
            others = [each for each in losses if each is not loss and each.begun > send.begun]
            if send.ended <= loss.begun and all(each.action.floors[tp] >= end for each in others):
                yield setitem, loss.action.floors, tp, end


@mutation("unflushed acknowledgement", "unflushed read")
def overstate_a_loss(history: History, random: Random) -> Iterator[Change]:
    """Lower the floor of a Loss below an acknowledged batch. Used with `durable` only."""
    for loss in of(history, Loss):
        for send in of(history, Send):
            tp, floors = send.action.tp, loss.action.floors
            if is_acknowledged(send) and send.ended < loss.begun and not deletions(history, tp):
                yield setitem, floors, tp, min(floors[tp], send.action.base_offset)
