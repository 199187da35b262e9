"""Anomalies for a reader: what is wrong, and the history around it."""

from bisect import bisect_left
from collections.abc import Sequence

from kbroker.simulation.checker.anomaly import Anomaly
from kbroker.simulation.checker.history import (
    Assign,
    Commit,
    Corrupt,
    EndTransaction,
    History,
    Join,
    Loss,
    Note,
    OffsetFetch,
    Operation,
    Poll,
    Send,
    Trim,
    show,
)

# Of each kind, and of one anomaly: more tell a reader nothing new.
MOST_OF_A_KIND = 5
MOST_OPERATIONS = 16
MOST_CHARACTERS = 240


def render(history: History, anomalies: Sequence[Anomaly], around: int = 12) -> str:
    """Each anomaly's text, then its operations (marked) with those next to each of them, `around` in all, that have to
    do with it: of the same partitions, groups, transactions or processes, and faults."""
    lines = []
    by_kind: dict[str, list[Anomaly]] = {}
    for one in anomalies:
        by_kind.setdefault(one.kind, []).append(one)
    for kind, found in by_kind.items():
        for one in found[:MOST_OF_A_KIND]:
            lines += [f"{kind.upper()}: {one.text}", *_story(history, one, around), ""]
        if len(found) > MOST_OF_A_KIND:
            lines += [f"{kind.upper()}: {len(found) - MOST_OF_A_KIND} more.", ""]
    return "\n".join(lines)


def _story(history: History, found: Anomaly, around: int) -> list[str]:
    marked = {one.number for one in found.operations[:MOST_OPERATIONS]}
    subjects = {subject: None for one in found.operations for subject in _subjects(one)}
    near = [
        one.number
        for one in history.operations
        if one.number in marked or isinstance(one.action, Loss | Note) or not subjects.keys().isdisjoint(_subjects(one))
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
    """What an operation has to do with: its process and partitions, groups, transactions."""
    subjects: list[object] = [operation.process]
    match operation.action:
        case Send(place=place, transaction=transaction):
            subjects += [place, transaction]
        case Poll(reads=reads):
            subjects += dict.fromkeys(read.place for read in reads)
        case Assign(positions=positions):
            subjects += positions
        case Trim(place=place) | Corrupt(place=place):
            subjects.append(place)
        case Join(group=group) | Commit(group=group) | OffsetFetch(group=group):
            subjects.append(group)
        case EndTransaction(transaction=transaction):
            subjects.append(transaction)
        case _:
            pass
    return [subject for subject in subjects if subject is not None]


def _line(operation: Operation) -> str:
    """As `show` has it, with the middle of long lists left out."""
    line = show(operation)
    if len(line) <= MOST_CHARACTERS:
        return line
    head, tail = line[: MOST_CHARACTERS * 2 // 3], line[-MOST_CHARACTERS // 3 :]
    return f"{head[: head.rindex(' ')]} ... {tail[tail.index(' ') + 1 :]}"
