"""Mutations of histories of groups and transactions. MUTATIONS also has those of history_mutations.py."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from kbroker.simulation.checker.history import (
    Commit,
    EndTransaction,
    History,
    Join,
    Loss,
    OffsetFetch,
    Operation,
    Outcome,
    Poll,
    Send,
)
from tests.unit.simulation.checker.history_mutations import (
    MUTATIONS,
    Change,
    final_polls,
    final_reads,
    is_spared,
    mutation,
    of,
)

__all__ = ["MUTATIONS"]


def succeeded(history: History, kind: type) -> list[Operation]:
    return [operation for operation in of(history, kind) if operation.outcome is Outcome.OK]


def loses_between(history: History, begin: int, end: int) -> bool:
    return any(begin < loss.begun < end for loss in of(history, Loss))


@mutation("lost commit")
def lose_a_commit(history: History, random: Random) -> Iterator[Change]:
    """Let a read return no offset, although no Loss explains it."""
    first = min((commit.ended for commit in succeeded(history, Commit)), default=1 << 60)
    for read in of(history, OffsetFetch):
        if read.begun > first and read.ended is not None and not loses_between(history, first, read.ended):
            yield setattr, read.action, "offsets", dict.fromkeys(read.action.offsets, -1)


@mutation("unknown commit")
def read_an_offset_that_was_never_committed(history: History, random: Random) -> Iterator[Change]:
    for read in of(history, OffsetFetch):
        if read.ended is not None:
            yield setattr, read.action, "offsets", dict.fromkeys(read.action.offsets, 777)


@mutation("stale commit")
def commit_from_an_older_generation(history: History, random: Random) -> Iterator[Change]:
    for commit in succeeded(history, Commit):
        joins = [join for join in succeeded(history, Join) if join.action.generation == commit.action.generation]
        if any(join.ended < commit.begun for join in joins) and not loses_between(history, -1, commit.ended):
            yield setattr, commit.action, "generation", commit.action.generation - 1


@mutation("double assignment")
def assign_a_partition_twice(history: History, random: Random) -> Iterator[Change]:
    joins = [join for join in succeeded(history, Join) if join.action.partitions]
    for first, second in pairwise(joins):
        of_one_generation = first.action.generation == second.action.generation and first.process != second.process
        if of_one_generation and not loses_between(history, first.begun, second.ended):
            yield setattr, second.action, "partitions", first.action.partitions


@mutation("backward generation")
def move_a_generation_back(history: History, random: Random) -> Iterator[Change]:
    joins = succeeded(history, Join)
    commits = [commit for commit in of(history, Commit) if commit.outcome is not Outcome.FAILED]
    for join in joins:
        is_remembered = any(commit.begun < join.begun for commit in commits)
        before = [each for each in joins if each.ended < join.begun]
        if is_remembered and not all(loses_between(history, each.begun, join.ended) for each in before):
            yield setattr, join.action, "generation", 0


def end_with(operation: Operation, commit: bool) -> None:
    operation.action.commit, operation.outcome = commit, Outcome.OK


@mutation("aborted read", "pre-committed read")
def abort_a_transaction_that_was_read(history: History, random: Random) -> Iterator[Change]:
    """Abort a transaction whose records were read with read_committed."""
    values = {read.value for poll in of(history, Poll) if poll.action.committed_only for read in poll.action.reads}
    transactions = {send.action.transaction for send in of(history, Send) if values & set(send.action.values)}
    for end in of(history, EndTransaction):
        if end.action.transaction in transactions:
            yield end_with, end, False


@mutation("lost write", "torn transaction", "skipped records")
def commit_a_transaction_that_is_missing(history: History, random: Random) -> Iterator[Change]:
    """Commit a transaction whose records the final polls did not return."""
    finals = final_reads(history)
    partitions = {tp for poll in final_polls(history) for tp in poll.action.positions}
    missing = {
        send.action.transaction
        for send in of(history, Send)
        if not finals.keys() & set(send.action.values) and send.action.tp in partitions
        if is_spared(history, send.action.tp, send.begun)
    }
    for end in of(history, EndTransaction):
        if end.action.transaction in missing:
            yield end_with, end, True
