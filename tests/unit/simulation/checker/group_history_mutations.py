"""Mutations of histories of groups and transactions. MUTATIONS also has those of history_mutations.py."""

from itertools import pairwise

from kbroker.simulation.checker.history import Commit, EndTransaction, Join, Loss, OffsetFetch, Outcome, Poll, Send
from tests.unit.simulation.checker.history_mutations import MUTATIONS, final_reads, mutation, of, pick, spared

__all__ = ["MUTATIONS"]


@mutation("lost commit")
def lose_a_commit(history, random):
    """Make a read return no offset, although no Loss explains it."""
    losses = of(history, Loss)
    first = min((one.ended for one in of(history, Commit) if one.outcome is Outcome.OK), default=None)
    reads = [
        one
        for one in of(history, OffsetFetch)
        if first is not None and one.begun > first and one.ended is not None
        if not any(first < loss.begun < one.ended for loss in losses)
    ]
    found = pick(random, reads)
    if found is None:
        return False
    found.action.offsets = dict.fromkeys(found.action.offsets, -1)
    return True


@mutation("unknown commit")
def read_an_offset_that_was_never_committed(history, random):
    found = pick(random, (one for one in of(history, OffsetFetch) if one.ended is not None))
    if found is None:
        return False
    found.action.offsets = dict.fromkeys(found.action.offsets, 777)
    return True


@mutation("stale commit")
def commit_from_an_older_generation(history, random):
    losses, joins = of(history, Loss), of(history, Join)
    commits = [
        one
        for one in of(history, Commit)
        if one.outcome is Outcome.OK and not any(loss.begun < one.ended for loss in losses)
        if any(
            join.outcome is Outcome.OK and join.ended < one.begun and join.action.generation == one.action.generation
            for join in joins
        )
    ]
    found = pick(random, commits)
    if found is None:
        return False
    found.action.generation -= 1
    return True


@mutation("double assignment")
def assign_a_partition_twice(history, random):
    joins = [one for one in of(history, Join) if one.outcome is Outcome.OK and one.action.partitions]
    losses = of(history, Loss)
    found = pick(
        random,
        (
            (a, b)
            for a, b in pairwise(joins)
            if a.action.generation == b.action.generation and a.process != b.process
            if not any(a.begun < loss.begun < b.ended for loss in losses)
        ),
    )
    if found is None:
        return False
    found[1].action.partitions = found[0].action.partitions
    return True


@mutation("backward generation")
def move_a_generation_back(history, random):
    losses, joins = of(history, Loss), [one for one in of(history, Join) if one.outcome is Outcome.OK]
    commits = [one for one in of(history, Commit) if one.outcome is not Outcome.FAILED]
    found = pick(
        random,
        (
            one
            for one in joins
            if any(commit.begun < one.begun for commit in commits)
            if any(
                other.ended < one.begun and not any(other.begun < loss.begun < one.ended for loss in losses)
                for other in joins
            )
        ),
    )
    if found is None:
        return False
    found.action.generation = 0
    return True


@mutation("aborted read", "pre-committed read")
def abort_a_transaction_that_was_read(history, random):
    """Abort a transaction whose records were read with read_committed."""
    read = {read.value for one in of(history, Poll) if one.action.committed_only for read in one.action.reads}
    seen = {one.action.transaction for one in of(history, Send) if read & set(one.action.values)}
    found = pick(random, (one for one in of(history, EndTransaction) if one.action.transaction in seen))
    if found is None:
        return False
    found.action.commit, found.outcome = False, Outcome.OK
    return True


@mutation("lost write", "torn transaction", "skipped records")
def commit_a_transaction_that_is_missing(history, random):
    """Commit a transaction whose records the final polls did not return."""
    finals = final_reads(history)
    fully = {tp for one in of(history, Poll) if one.begun > history.final for tp in one.action.positions}
    missing = {
        one.action.transaction
        for one in of(history, Send)
        if one.action.transaction is not None and not finals.keys() & set(one.action.values)
        if one.action.tp in fully and spared(history, one.action.tp, one.begun)
    }
    found = pick(random, (one for one in of(history, EndTransaction) if one.action.transaction in missing))
    if found is None:
        return False
    found.action.commit, found.outcome = True, Outcome.OK
    return True
