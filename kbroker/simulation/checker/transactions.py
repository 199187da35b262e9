"""Transactions: aborted and pre-committed reads, torn transactions, write-read cycles; exactly-once processing."""

from collections.abc import Iterator, Mapping
from enum import Enum

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, shorten
from kbroker.simulation.checker.history import (
    EndTransaction,
    Loss,
    OffsetFetch,
    Operation,
    OperationOf,
    Outcome,
    Poll,
    Send,
    TopicPartition,
    partition_name,
)
from kbroker.simulation.checker.index import NEVER, Index, PartitionIndex, end_offset, ended


class TransactionOutcome(Enum):
    """UNKNOWN: a commit was requested and no response arrived. OPEN: a commit was never requested."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    OPEN = "open"


def transaction_outcomes(index: Index) -> dict[int, TransactionOutcome]:
    """Return the outcome of each transaction that has an EndTransaction. A transaction whose commit was not requested
    is OPEN, even if the coordinator aborted it after its timeout."""
    return {transaction: _transaction_outcome(ends) for transaction, ends in index.transaction_ends.items()}


def _transaction_outcome(ends: list[OperationOf[EndTransaction]]) -> TransactionOutcome:
    known = [operation.action.commit for operation in ends if operation.outcome is Outcome.OK]
    if known:
        return TransactionOutcome.COMMITTED if any(known) else TransactionOutcome.ABORTED
    return (
        TransactionOutcome.UNKNOWN
        if any(operation.action.commit and operation.outcome is Outcome.UNKNOWN for operation in ends)
        else TransactionOutcome.OPEN
    )


def uncommitted_reads(index: Index) -> Iterator[Anomaly]:
    """Report reads with read_committed that returned records of an aborted transaction, or of one whose commit had not
    begun (Jepsen's G1a and precommitted reads). This includes the transaction's own reads. With read_uncommitted all
    reads are permitted."""
    if not index.transactional:
        return
    ends = transaction_outcomes(index)
    commits = {number: _first_commit(ends) for number, ends in index.transaction_ends.items()}
    reported: dict[tuple[str, int], None] = {}
    for operation, sender, transaction in _reads_of_transactions(index):
        if ends.get(transaction) is TransactionOutcome.ABORTED:
            kind, text = "aborted read", "which was aborted"
        elif commits.get(transaction, NEVER) >= ended(operation):
            kind, text = "pre-committed read", "whose commit had not been requested"
        else:
            continue
        if (kind, transaction) not in reported:
            reported[kind, transaction] = None
            yield anomaly(
                kind,
                f"{operation.process} read, with read_committed, a record of transaction {transaction}, {text}.",
                sender,
                operation,
                *index.transaction_ends.get(transaction, []),
            )


def _first_commit(ends: list[OperationOf[EndTransaction]]) -> int:
    return min(
        (operation.begun for operation in ends if operation.action.commit and operation.outcome is not Outcome.FAILED),
        default=NEVER,
    )


def _reads_of_transactions(index: Index) -> Iterator[tuple[OperationOf[Poll], OperationOf[Send], int]]:
    """Yield (poll, send, transaction) for polls with read_committed that returned transactional records, once per poll
    and transaction."""
    for operation in index.of(Poll):
        found: dict[int, OperationOf[Send]] = {}
        for read in operation.action.reads if operation.action.committed_only else ():
            sender = index.senders.get(read.value)
            if sender is not None and sender.action.transaction is not None:
                found.setdefault(sender.action.transaction, sender)
        for transaction, sender in found.items():
            yield operation, sender, transaction


def torn_transactions(index: Index) -> Iterator[Anomaly]:
    """Report transactions with an unknown outcome of which only some batches are present at the end: all or none must
    be. (`lost_writes` checks committed transactions.)

    Permitted: batches that a Loss or a deletion may have removed from one of the partitions, and batches that were not
    acknowledged and so may not belong to the transaction.
    """
    if not index.transactional:
        return
    ends = transaction_outcomes(index)
    by_transaction: dict[int, list[tuple[PartitionIndex, OperationOf[Send]]]] = {}
    for partition in index.partitions.values():
        for operation in partition.sends:
            transaction = operation.action.transaction
            if transaction is not None and ends.get(transaction) is TransactionOutcome.UNKNOWN:
                by_transaction.setdefault(transaction, []).append((partition, operation))
    final, reach = final_committed_reads(index)
    for transaction, sends in by_transaction.items():
        present = [operation for _, operation in sends if final.keys() & set(operation.action.values)]
        gone = [
            operation
            for partition, operation in sends
            if operation not in present and _should_be_there(partition, operation, reach)
        ]
        if present and gone:
            yield anomaly(
                "torn transaction",
                f"Of transaction {transaction} {len(present)} batches are present at the end and {len(gone)} are not: "
                f"{shorten(gone[0].action.values)} of {partition_name(gone[0].action.tp)}.",
                *(operation for _, operation in sends),
                *index.transaction_ends[transaction],
            )


def final_committed_reads(index: Index) -> tuple[Mapping[int, None], Mapping[TopicPartition, int]]:
    """Return the values that the final polls with read_committed returned, and their end offset in each partition."""
    values: dict[int, None] = {}
    reach: dict[TopicPartition, int] = {}
    for operation in index.of(Poll):
        poll = operation.action
        if poll.committed_only and index.history.final is not None and operation.begun > index.history.final:
            values.update(dict.fromkeys(read.value for read in poll.reads))
            for tp, position in poll.positions.items():
                reach[tp] = max(position, reach.get(tp, 0))
    return values, reach


def _should_be_there(
    partition: PartitionIndex, operation: OperationOf[Send], reach: Mapping[TopicPartition, int]
) -> bool:
    """Return whether a batch must be present if any other batch of its transaction is."""
    base, last = operation.action.base_offset, end_offset(operation) - 1
    return (
        base is not None
        and 0 <= last < reach.get(partition.tp, 0)
        and not partition.may_have_lost(last, operation.begun, NEVER)
        and not partition.may_be_deleted(base, operation.begun)
    )


def write_read_cycles(index: Index) -> Iterator[Anomaly]:
    """Report cycles of transactions that each read what another one wrote (Adya's G1c, with write-read edges only).

    Kafka does not isolate writes: batches of several transactions interleave in a partition. So cycles of writes alone
    (G0), and cycles with a write-write edge, are permitted, as in Jepsen's workload. But a transaction must be
    committed before others read it with read_committed, so write-read edges alone cannot form a cycle. With
    read_uncommitted they can.
    """
    if not index.transactional:
        return
    edges: dict[int, dict[int, Operation]] = {}
    for operation, _, writer in _reads_of_transactions(index):
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
    """Yield one cycle for each back edge that a depth-first search finds."""
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


# Exactly-once: each input record of a consume-transform-produce group has exactly one committed result.
#
# Programs read with a consumer group, write one result per record, and commit the group's offsets in the same
# transaction. The final state is checked, so lost responses do not matter: each record before the committed offset has
# one result, and each later record has none. If a Loss may have removed records, nothing is checked. If all
# acknowledged records are durable, a Loss is no excuse, because a result is read only after it is committed.

# An input record: its partition and offset.
Source = tuple[TopicPartition, int]


def exactly_once_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report input records with several results, or whose result and committed offset do not match.

    `durable`: a Loss does not remove acknowledged records.
    """
    if index.history.final is None or (index.of(Loss) and not durable):
        return
    results = _results(index)
    if not results:
        return
    committed = _committed(index, results)
    visible, _ = final_committed_reads(index)
    for group, sources in results.items():
        visible_results = {
            source: [result for result in sends if result[0] in visible] for source, sends in sources.items()
        }
        yield from _duplicate_results(group, visible_results)
        if group in committed:
            yield from _mismatched_offsets(index, group, visible_results, committed[group], visible)


def _results(index: Index) -> dict[str, dict[Source, list[tuple[int, Operation]]]]:
    """Return the results of each group and input record: their values and Send operations."""
    results: dict[str, dict[Source, list[tuple[int, Operation]]]] = {}
    for partition in index.partitions.values():
        for operation in partition.sends:
            send = operation.action
            for value, source in zip(send.values, send.sources, strict=False):
                results.setdefault(send.group, {}).setdefault(source, []).append((value, operation))
    return results


def _committed(index: Index, groups: Mapping[str, object]) -> dict[str, OperationOf[OffsetFetch]]:
    """Return the final OffsetFetch of each group."""
    final = NEVER if index.history.final is None else index.history.final
    return {
        operation.action.group: operation
        for operation in index.of(OffsetFetch)
        if operation.action.group in groups
        if operation.begun > final and operation.outcome is Outcome.OK
    }


def _duplicate_results(group: str, results: Mapping[Source, list[tuple[int, Operation]]]) -> Iterator[Anomaly]:
    for (tp, offset), sends in results.items():
        if len(sends) > 1:
            yield anomaly(
                "transformed twice",
                f"{group} has several committed results for offset {offset} of {partition_name(tp)}: "
                f"{shorten([value for value, _ in sends])}.",
                *(operation for _, operation in sends),
            )


def _mismatched_offsets(
    index: Index,
    group: str,
    results: Mapping[Source, list[tuple[int, Operation]]],
    committed: OperationOf[OffsetFetch],
    visible: Mapping[int, None],
) -> Iterator[Anomaly]:
    for tp, end in committed.action.offsets.items():
        partition = index.partition(tp)
        early = [offset for (at, offset), sends in results.items() if at == tp and sends and offset >= end]
        if early:
            yield anomaly(
                "result without its offset",
                f"{group} has results for offsets {shorten(sorted(early))} of {partition_name(tp)}, but committed "
                f"offset {end}.",
                *(operation for offset in early[:3] for _, operation in results[tp, offset]),
                committed,
            )
        missing = [offset for offset in _visible_before(partition, end, visible) if not results.get((tp, offset))]
        if missing:
            yield anomaly(
                "offset without its result",
                f"{group} committed offset {end} of {partition_name(tp)}, but has no result for offsets "
                f"{shorten(missing)}.",
                committed,
                *(index.senders.get(partition.final[offset]) for offset in missing[:3]),
            )


def _visible_before(partition: PartitionIndex, end: int, visible: Mapping[int, None]) -> list[int]:
    """Return the offsets before `end` that the final polls with read_committed returned. A partition with deleted
    records has none, because the group may not have read them before the deletion."""
    if partition.deletions:
        return []
    return sorted(offset for offset, value in partition.final.items() if offset < end and value in visible)
