"""Transactions: aborted and pre-committed reads, torn transactions, cycles of who wrote what the other read."""

from collections.abc import Iterator, Mapping
from enum import Enum

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.history import EndTransaction, Operation, Outcome, Place, Poll, Send
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex


class TransactionOutcome(Enum):
    """UNKNOWN: a commit was requested and no response arrived. OPEN: a commit was never requested."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    OPEN = "open"


def transaction_outcomes(index: Index) -> dict[int, TransactionOutcome]:
    """How each transaction ended. One whose end was never asked for is not in it; one that the coordinator aborts
    because its time is over is OPEN."""
    return {transaction: _transaction_outcome(ends) for transaction, ends in index.transaction_ends.items()}


def _transaction_outcome(ends: list[Operation]) -> TransactionOutcome:
    known = [_commits(one) for one in ends if one.outcome is Outcome.OK]
    if known:
        return TransactionOutcome.COMMITTED if any(known) else TransactionOutcome.ABORTED
    return (
        TransactionOutcome.UNKNOWN
        if any(_commits(one) and one.outcome is Outcome.UNKNOWN for one in ends)
        else TransactionOutcome.OPEN
    )


def _commits(operation: Operation) -> bool:
    assert isinstance(operation.action, EndTransaction)
    return operation.action.commit


def uncommitted_reads(index: Index) -> Iterator[Anomaly]:
    """With read_committed nobody sees a record before its transaction is being committed, the transaction itself
    included, nor ever one that was aborted (Jepsen: G1a and precommitted reads). With read_uncommitted all may see
    everything."""
    if not index.transactional:
        return
    ends = transaction_outcomes(index)
    commits = {number: _first_commit(found) for number, found in index.transaction_ends.items()}
    told: dict[tuple[str, int], None] = {}
    for operation, sender, transaction in _reads_of_transactions(index):
        if ends.get(transaction) is TransactionOutcome.ABORTED:
            kind, text = "aborted read", "which was aborted"
        elif commits.get(transaction, NEVER) >= (operation.ended or NEVER):
            kind, text = "pre-committed read", "whose commit had not been asked for"
        else:
            continue
        if (kind, transaction) not in told:
            told[kind, transaction] = None
            yield anomaly(
                kind,
                f"{operation.process} was given, with read_committed, what transaction {transaction} wrote, {text}.",
                sender,
                operation,
                *index.transaction_ends.get(transaction, []),
            )


def _first_commit(ends: list[Operation]) -> int:
    return min((one.begun for one in ends if _commits(one) and one.outcome is not Outcome.FAILED), default=NEVER)


def _reads_of_transactions(index: Index) -> Iterator[tuple[Operation, Operation, int]]:
    """Who read with read_committed what a transaction wrote; the batch and the transaction. Each poll and transaction
    once."""
    for operation in index.polls:
        poll = operation.action
        assert isinstance(poll, Poll)
        if not poll.committed_only:
            continue
        told: dict[int, None] = {}
        for read in poll.reads:
            sender = index.senders.get(read.value)
            if sender is None or not isinstance(sender.action, Send) or sender.action.transaction is None:
                continue
            if sender.action.transaction not in told:
                told[sender.action.transaction] = None
                yield operation, sender, sender.action.transaction


def torn_transactions(index: Index) -> Iterator[Anomaly]:
    """What a transaction wrote is there at the end wholly or not at all. One that was committed must be there (that
    is `lost_writes`); of one whose end is not known either is right, but not some of it.

    Permitted: what a Loss or a deletion may have taken from one of its partitions, and batches that were not
    acknowledged, which may never have been a part of it.
    """
    if not index.transactional:
        return
    ends = transaction_outcomes(index)
    by_transaction: dict[int, list[tuple[PartitionIndex, Operation]]] = {}
    for partition in index.partitions.values():
        for operation in partition.sends:
            transaction = operation.action.transaction if isinstance(operation.action, Send) else None
            if transaction is not None and ends.get(transaction) is TransactionOutcome.UNKNOWN:
                by_transaction.setdefault(transaction, []).append((partition, operation))
    final, reach = final_committed_reads(index)
    for transaction, sends in by_transaction.items():
        there = [one for _, one in sends if isinstance(one.action, Send) and final.keys() & set(one.action.values)]
        gone = [one for partition, one in sends if one not in there and _should_be_there(partition, one, reach)]
        if there and gone:
            assert isinstance(gone[0].action, Send)
            yield anomaly(
                "torn transaction",
                f"Of transaction {transaction} {len(there)} batches are there at the end and {len(gone)} are not: "
                f"{shorten(gone[0].action.values)} of {partition_name(gone[0].action.place)}.",
                *(one for _, one in sends),
                *index.transaction_ends[transaction],
            )


def final_committed_reads(index: Index) -> tuple[Mapping[int, None], Mapping[Place, int]]:
    """The values that the final polls with read_committed gave, and up to where they came."""
    values: dict[int, None] = {}
    reach: dict[Place, int] = {}
    for operation in index.polls:
        poll = operation.action
        assert isinstance(poll, Poll)
        if poll.committed_only and index.history.final is not None and operation.begun > index.history.final:
            values.update(dict.fromkeys(read.value for read in poll.reads))
            for place, position in poll.positions.items():
                reach[place] = max(position, reach.get(place, 0))
    return values, reach


def _should_be_there(partition: PartitionIndex, operation: Operation, reach: Mapping[Place, int]) -> bool:
    """If any of its transaction is."""
    send = operation.action
    assert isinstance(send, Send)
    if operation.outcome is not Outcome.OK or send.base_offset is None:
        return False
    last = send.base_offset + len(send.values) - 1
    return (
        last < reach.get(partition.place, 0)
        and not partition.may_have_lost(last, operation.begun, NEVER)
        and not partition.may_be_deleted(send.base_offset, operation.begun)
    )


def write_read_cycles(index: Index) -> Iterator[Anomaly]:
    """Transactions that each read what the next one wrote, in a circle (Adya's G1c, with write-read edges only).

    Kafka does not isolate writes: batches of transactions lie in a partition in the order in which they came, one
    between the other's. So the order of writes is no order of transactions: cycles of writes alone (G0) happen all the
    time, and a cycle that needs a write-write edge says nothing (Jepsen's workload permits both). But a transaction
    that is read with read_committed was committed before, so reads alone cannot go in a circle. With read_uncommitted
    they can.
    """
    if not index.transactional:
        return
    edges: dict[int, dict[int, Operation]] = {}
    for operation, _, writer in _reads_of_transactions(index):
        assert isinstance(operation.action, Poll)
        reader = operation.action.transaction
        if reader is not None and reader != writer:
            edges.setdefault(writer, {}).setdefault(reader, operation)
    for cycle in _cycles(edges):
        reads = [edges[a][b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)]
        ends = [end for transaction in cycle for end in index.transaction_ends.get(transaction, [])]
        yield anomaly(
            "write-read cycle",
            f"Each of the transactions {', '.join(map(str, cycle))} was read by the next one, and the last by the "
            "first.",
            *reads,
            *ends,
        )


def _cycles(edges: Mapping[int, Mapping[int, Operation]]) -> Iterator[list[int]]:
    """One cycle for each way back that a walk in depth finds; each node is entered once."""
    state: dict[int, int] = {}
    for start in edges:
        if start in state:
            continue
        path, todo = [start], [iter(edges[start])]
        state[start] = 0
        while path:
            after = next(todo[-1], None)
            if after is None:
                state[path.pop()] = -1
                todo.pop()
            elif after not in state:
                state[after] = len(path)
                path.append(after)
                todo.append(iter(edges.get(after, {})))
            elif state[after] >= 0:
                yield path[state[after] :]
