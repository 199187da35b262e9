"""An anomaly in a history, and its report with the surrounding operations."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.simulation.checker.history import (
    Assign,
    Commit,
    Corrupt,
    DeleteRecords,
    EndTransaction,
    History,
    Join,
    Loss,
    Note,
    OffsetFetch,
    Operation,
    Own,
    Poll,
    Send,
    show,
)


@dataclass(slots=True)
class Anomaly:
    """`kind`: for example "lost write". `text`: the description in the report. `operations`: the operations to show, in
    history order."""

    kind: str
    text: str
    operations: list[Operation]


def anomaly(kind: str, text: str, *operations: Operation | None) -> Anomaly:
    """Create an anomaly from its operations, without duplicates and None."""
    by_number = {operation.number: operation for operation in operations if operation is not None}
    return Anomaly(kind, text, [by_number[number] for number in sorted(by_number)])


def shorten(numbers: Sequence[int], most: int = 8) -> str:
    """Return the first numbers and a count of the others: "4, 5, 6 and 30 more"."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"


# Limits per kind of anomaly, per anomaly, and per line.
MAX_PER_KIND = 5
MAX_OPERATIONS = 16
MAX_CHARACTERS = 240


def render(history: History, anomalies: Sequence[Anomaly], around: int = 12) -> str:
    """Format each anomaly: its text, its operations (marked with ">") and, for each of them, the `around` nearest
    related operations: faults, and operations on the same partitions, groups, transactions or processes."""
    lines = []
    by_kind: dict[str, list[Anomaly]] = {}
    for found in anomalies:
        by_kind.setdefault(found.kind, []).append(found)
    for kind, same_kind in by_kind.items():
        for found in same_kind[:MAX_PER_KIND]:
            lines += [f"{kind.upper()}: {found.text}", *_operation_lines(history, found, around), ""]
        if len(same_kind) > MAX_PER_KIND:
            lines += [f"{kind.upper()}: {len(same_kind) - MAX_PER_KIND} more.", ""]
    return "\n".join(lines)


def _operation_lines(history: History, found: Anomaly, around: int) -> list[str]:
    marked = {operation.number for operation in found.operations[:MAX_OPERATIONS]}
    subjects = {subject: None for operation in found.operations for subject in _subjects(operation)}
    near = [
        operation.number
        for operation in history.operations
        if operation.number in marked
        or isinstance(operation.action, Loss | Note)
        or not subjects.keys().isdisjoint(_subjects(operation))
    ]
    chosen = dict.fromkeys(marked)
    for number in sorted(marked):
        at = bisect_left(near, number)
        chosen.update(dict.fromkeys(near[max(0, at - around // 2) : at + 1 + around // 2]))
    lines = []
    before = None
    for number in sorted(chosen):
        if before is not None and number != before + 1:
            lines.append("         ...")
        before = number
        lines.append(f"{'>' if number in marked else ' '} {_line(history.operations[number])}")
    return lines


def _subjects(operation: Operation) -> list[object]:
    """Return what an operation concerns: its process, partitions, group and transaction."""
    subjects: list[object] = [operation.process]
    match operation.action:
        case Send(tp=tp, transaction=transaction):
            subjects += [tp, transaction]
        case Poll(reads=reads):
            subjects += dict.fromkeys(read.tp for read in reads)
        case Assign(positions=positions):
            subjects += positions
        case DeleteRecords(tp=tp) | Corrupt(tp=tp):
            subjects.append(tp)
        case Join(group=group) | Own(group=group) | Commit(group=group) | OffsetFetch(group=group):
            subjects.append(group)
        case EndTransaction(transaction=transaction):
            subjects.append(transaction)
        case _:
            pass
    return [subject for subject in subjects if subject is not None]


def _line(operation: Operation) -> str:
    """Format an operation with `show`, without the middle of a long line."""
    line = show(operation)
    if len(line) <= MAX_CHARACTERS:
        return line
    head, tail = line[: MAX_CHARACTERS * 2 // 3], line[-MAX_CHARACTERS // 3 :]
    return f"{head[: head.rindex(' ')]} ... {tail[tail.index(' ') + 1 :]}"
