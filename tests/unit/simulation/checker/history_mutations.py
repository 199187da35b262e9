"""Mutations that make a correct history incorrect, each with the anomalies that the checker must report.

A mutation returns False if the history has nothing that it can change into a certain anomaly: for example, a missing
record that a Loss or a deletion may have removed is permitted.
"""

from collections.abc import Callable, Iterator
from random import Random

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

Mutation = Callable[[History, Random], bool]
MUTATIONS: dict[str, tuple[Mutation, frozenset[str]]] = {}


def mutation(*kinds: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation. `kinds`: the checker must report at least one of these kinds of anomalies."""

    def add(function: Mutation) -> Mutation:
        MUTATIONS[function.__name__] = function, frozenset(kinds)
        return function

    return add


# Selecting operations.


def of(history: History, kind: type) -> list[Operation]:
    return [one for one in history.operations if isinstance(one.action, kind)]


def spared(history: History, tp: TopicPartition, since: int) -> bool:
    """Whether no Loss or deletion affected this partition after step `since`."""
    losses = [one for one in of(history, Loss) if tp in one.action.floors and one.begun > since]
    deletions = [one for one in of(history, DeleteRecords) if one.action.tp == tp and one.ended > since]
    return not losses and not deletions


def kept_sends(history: History) -> list[Operation]:
    """Return the sends that were acknowledged with an offset and that no Loss or deletion may have removed."""
    return [
        one
        for one in of(history, Send)
        if one.outcome is Outcome.OK and one.action.base_offset is not None and one.action.transaction is None
        if one.action.acks != 0 and spared(history, one.action.tp, one.begun)
    ]


def final_reads(history: History) -> dict[int, tuple[Operation, Read]]:
    return {
        read.value: (one, read) for one in of(history, Poll) if one.begun > history.final for read in one.action.reads
    }


def pairs(history: History) -> Iterator[tuple[Operation, int]]:
    """Yield (poll, i) where records i and i + 1 of the poll are of the same partition."""
    for one in of(history, Poll):
        reads = one.action.reads
        for i in range(len(reads) - 1):
            if one.ended is not None and reads[i].tp == reads[i + 1].tp:
                yield one, i


def pick(random: Random, found):
    found = list(found)
    return random.choice(found) if found else None


# Mutations.


@mutation("lost write", "skipped records")
def remove_record_from_final_reads(history, random):
    """Of an idempotent producer, since a duplicate of another producer's batch may remain."""
    finals = final_reads(history)
    found = pick(random, (one for one in kept_sends(history) if one.action.idempotent))
    if found is None:
        return False
    operation, read = finals[random.choice(found.action.values)]
    operation.action.reads.remove(read)
    return True


@mutation("torn batch", "lost write", "skipped records")
def remove_part_of_batch_from_final_reads(history, random):
    finals = final_reads(history)
    found = pick(
        random,
        (
            one
            for one in of(history, Send)
            if len(one.action.values) > 1 and one.action.idempotent and one.action.transaction is None
            if all(value in finals for value in one.action.values)
            if not any(deletion.action.tp == one.action.tp for deletion in of(history, DeleteRecords))
        ),
    )
    if found is None:
        return False
    operation, read = finals[random.choice(found.action.values)]
    operation.action.reads.remove(read)
    return True


@mutation("unreadable at the end", "lost write")
def stop_final_reads_early(history, random):
    found = pick(random, kept_sends(history))
    if found is None:
        return False
    tp, base = found.action.tp, found.action.base_offset
    for operation in of(history, Poll):
        if operation.begun > history.final:
            poll = operation.action
            poll.reads[:] = [read for read in poll.reads if read.tp != tp or read.offset < base]
            if tp in poll.positions:
                poll.positions[tp] = min(base, poll.positions[tp])
    return True


@mutation("backward poll")
def swap_two_reads(history, random):
    found = pick(random, pairs(history))
    if found is None:
        return False
    reads, i = found[0].action.reads, found[1]
    reads[i], reads[i + 1] = reads[i + 1], reads[i]
    return True


@mutation("backward poll")
def repeat_a_read(history, random):
    found = pick(random, (one for one in of(history, Poll) if one.action.reads and one.ended is not None))
    if found is None:
        return False
    i = random.randrange(len(found.action.reads))
    found.action.reads.insert(i, found.action.reads[i])
    return True


@mutation("unsent value")
def read_an_invented_value(history, random):
    found = pick(random, (read for one in of(history, Poll) for read in one.action.reads))
    if found is None:
        return False
    found.value = -7
    return True


@mutation("inconsistent offsets")
def acknowledge_a_wrong_offset(history, random):
    found = pick(random, (one for one in kept_sends(history) if one.action.idempotent))
    if found is None:
        return False
    found.action.base_offset += random.choice([-3, -1, 1, 2, 1_000])
    return True


@mutation("unsent value")
def move_a_read_to_another_partition(history, random):
    found = pick(random, (read for one in of(history, Poll) for read in one.action.reads))
    if found is None:
        return False
    found.tp = ("another", 0)
    return True


@mutation("unsent value")
def fail_a_send_that_was_read(history, random):
    read = {read.value for one in of(history, Poll) for read in one.action.reads}
    found = pick(random, (one for one in of(history, Send) if one.ended is not None and read & set(one.action.values)))
    if found is None:
        return False
    found.outcome = Outcome.FAILED
    return True


@mutation("skipped records")
def remove_a_poll(history, random):
    """Remove a poll with acknowledged records between two other polls of the same consumer."""
    lasting = {value for one in kept_sends(history) if one.action.idempotent for value in one.action.values}
    candidates = []
    for process in dict.fromkeys(one.process for one in of(history, Poll)):
        own = [one for one in history.operations if one.process == process and isinstance(one.action, Poll | Assign)]
        for before, operation, after in zip(own, own[1:], own[2:], strict=False):
            if not all(
                isinstance(one.action, Poll) and one.outcome is Outcome.OK for one in (before, operation, after)
            ):
                continue
            for read in operation.action.reads:
                # The next poll has to ask for the partition, and the consumer to be known to stand before it.
                known = read.tp in before.action.positions and read.tp in after.action.positions
                if known and read.value in lasting and spared(history, read.tp, before.begun):
                    candidates.append(operation)
    found = pick(random, candidates)
    if found is None:
        return False
    history.operations.remove(found)
    return True


@mutation("stale poll")
def empty_a_poll(history, random):
    """Remove all records of a poll, although they were acknowledged before it began."""
    kept = kept_sends(history)
    candidates = []
    for operation in of(history, Poll):
        reads = operation.action.reads
        if operation.action.committed_only or operation.outcome is not Outcome.OK or not reads:
            continue
        given, tp = {read.offset: read.value for read in reads if read.tp == reads[0].tp}, reads[0].tp
        before = [one for one in kept if one.ended < operation.begun and one.action.tp == tp]
        if any(given.get(one.action.base_offset + i) == v for one in before for i, v in enumerate(one.action.values)):
            candidates.append(operation)
    found = pick(random, candidates)
    if found is None:
        return False
    # Restore its old positions too: a poll may advance without a record past transaction markers.
    own = [one for one in history.operations if one.process == found.process and isinstance(one.action, Poll | Assign)]
    stood = {}
    for one in own[: own.index(found)]:
        stood = {**(stood if isinstance(one.action, Poll) else {}), **one.action.positions}
    positions = found.action.positions
    for read in reversed(found.action.reads):
        positions[read.tp] = read.offset
    positions.update({tp: min(position, stood.get(tp, position)) for tp, position in positions.items()})
    found.action.reads.clear()
    return True


@mutation(
    "lost write", "inconsistent offsets", "unreadable at the end", "duplicate", "skipped records", "reset over records"
)
def understate_a_loss(history, random):
    """Raise the floor of a Loss, so that it does not explain a missing batch any more."""
    finals = final_reads(history)
    candidates = []
    for loss in of(history, Loss):
        for send in of(history, Send):
            tp = send.action.tp
            acknowledged = send.outcome is Outcome.OK and send.action.base_offset is not None and send.action.acks != 0
            if (
                send.action.transaction is not None
                or not acknowledged
                or send.ended > loss.begun
                or any(value in finals for value in send.action.values)
            ):
                continue
            end = send.action.base_offset + len(send.action.values)
            others = [one for one in of(history, Loss) if one is not loss and one.begun > send.begun]
            deletions = [one for one in of(history, DeleteRecords) if one.action.tp == tp and one.ended > send.begun]
            if not deletions and all(one.action.floors[tp] >= end for one in others):
                candidates.append((loss, tp, end))
    found = pick(random, candidates)
    if found is None:
        return False
    loss, tp, floor = found
    loss.action.floors[tp] = floor
    return True


@mutation("unflushed acknowledgement", "unflushed read")
def overstate_a_loss(history, random):
    """Lower the floor of a Loss below an acknowledged batch. Used with `durable` only."""
    found = pick(
        random,
        (
            (loss, send)
            for loss in of(history, Loss)
            for send in of(history, Send)
            if send.outcome is Outcome.OK and send.action.base_offset is not None and send.ended < loss.begun
            if spared_of_trims(history, send) and send.action.acks != 0
        ),
    )
    if found is None:
        return False
    loss, send = found
    floors = loss.action.floors
    floors[send.action.tp] = min(floors[send.action.tp], send.action.base_offset)
    return True


def spared_of_trims(history: History, send: Operation) -> bool:
    return not any(one.action.tp == send.action.tp for one in of(history, DeleteRecords))
