"""Where reset-offsets moves committed offsets, and plans as files in the form of kafka-consumer-groups."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kbroker.cli.common.errors import CliError

Bounds = Mapping[Any, int]  # by kafka.TopicPartition, or any (topic, partition)


class Target(NamedTuple):
    """Where to; `number` is an offset, a distance, or ms since the epoch. "file": each partition has its own."""

    kind: Literal["earliest", "latest", "current", "offset", "shift", "time", "file"]
    number: int = 0


class Move(NamedTuple):
    """One partition's move; `old` is None when nothing is committed, `note` says why it goes elsewhere."""

    topic: str
    partition: int
    old: int | None
    new: int
    note: str | None = None


def plan_reset(
    partitions: Sequence[Any],
    target: Target,
    committed: Bounds,
    first: Bounds,
    end: Bounds,
    found: Bounds,
) -> list[Move]:
    """Where each partition's committed offset goes. Offsets that somebody wrote stay within the log, as in Kafka.

    `found` has the offsets of a time (negative: no record that late), or those of a file.
    """
    return [_move(tp, target, committed.get(tp), first[tp], end[tp], found.get(tp, -1)) for tp in partitions]


def _move(tp: Any, target: Target, old: int | None, first: int, end: int, found: int) -> Move:
    def to(new: int, note: str | None = None) -> Move:
        return Move(tp[0], tp[1], old, new, note)

    match target.kind:
        case "earliest":
            return to(first)
        case "latest":
            return to(end)
        case "current":
            return to(end if old is None else old, "nothing is committed: the end" if old is None else None)
        case "time":
            return to(found) if found >= 0 else to(end, "no record at or after that time: the end")
        case "shift" if old is None:
            raise CliError(f"cannot shift {tp[0]}-{tp[1]}: nothing is committed for it")
        case "shift":
            wanted = (old or 0) + target.number
        case "offset":
            wanted = target.number
        case "file":
            wanted = found
    if wanted > end:
        return to(end, f"{wanted} is higher than the log's end, {end}")
    if wanted < first:
        return to(first, f"{wanted} is lower than the log's start, {first}")
    return to(wanted)


class Line(NamedTuple):
    """One line of a plan in a file; without a group it is the one group's that is reset."""

    group: str | None
    topic: str
    partition: int
    offset: int


def read_plan(text: str, where: str) -> list[Line]:
    """Lines of `topic,partition,offset` or `group,topic,partition,offset`; one form in one file."""
    lines: list[Line] = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not any(cell.strip() for cell in row):
            continue
        cells = [cell.strip() for cell in row]
        whole = cells[-2:]
        if len(cells) not in (3, 4) or not all(cell.isascii() and cell.isdigit() for cell in whole):
            raise CliError(f"{where}, line {number}: expected [GROUP,]TOPIC,PARTITION,OFFSET, not {','.join(row)!r}")
        group = cells[0] if len(cells) == 4 else None
        if lines and (lines[0].group is None) != (group is None):
            raise CliError(f"{where}, line {number}: either all lines name their group or none does")
        lines.append(Line(group, cells[-3], int(whole[0]), int(whole[1])))
    if not lines:
        raise CliError(f"{where} has no offsets")
    return lines


def write_plan(plans: Iterable[tuple[str, Sequence[Move]]], with_groups: bool) -> str:
    """Plans by group as `read_plan` and Kafka's tool read them; the group stands there when there are several."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, plan in plans:
        for move in plan:
            writer.writerow([*([group] if with_groups else []), move.topic, move.partition, move.new])
    return text.getvalue()
