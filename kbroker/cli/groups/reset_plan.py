"""Plans of `kbroker groups reset-offsets`: new offsets, and plan files in the form of kafka-consumer-groups."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from kbroker.cli.common.errors import CliError

Offsets = Mapping[Any, int]  # by kafka.TopicPartition or any (topic, partition)


class ResetTarget(NamedTuple):
    """The target of committed offsets. `value` is an offset, a distance, or milliseconds since the epoch.

    With "file" each partition has its own offset.
    """

    kind: Literal["earliest", "latest", "current", "offset", "shift", "time", "file"]
    value: int = 0


class OffsetReset(NamedTuple):
    """The reset of one partition. `old` is None if nothing is committed; `note`: why `new` is not the target."""

    topic: str
    partition: int
    old: int | None
    new: int
    note: str | None = None


def plan_reset(
    partitions: Sequence[Any],
    target: ResetTarget,
    committed: Offsets,
    log_start: Offsets,
    log_end: Offsets,
    targets: Offsets,
) -> list[OffsetReset]:
    """Return the reset of each partition. Offsets are clamped to the log, as in Kafka.

    `targets` are the offsets of a time (negative if no record is that late), or those of a file.
    """
    return [_reset(tp, target, committed.get(tp), log_start[tp], log_end[tp], targets.get(tp, -1)) for tp in partitions]


def _reset(
    tp: Any, target: ResetTarget, old: int | None, log_start: int, log_end: int, target_offset: int
) -> OffsetReset:
    def reset(new: int, note: str | None = None) -> OffsetReset:
        return OffsetReset(tp[0], tp[1], old, new, note)

    match target.kind:
        case "earliest":
            return reset(log_start)
        case "latest":
            return reset(log_end)
        case "current":
            return reset(old) if old is not None else reset(log_end, "nothing is committed, so the log end offset")
        case "time":
            if target_offset < 0:
                return reset(log_end, "no record at or after that time, so the log end offset")
            return reset(target_offset)
        case "shift":
            if old is None:
                raise CliError(f"cannot shift {tp[0]}-{tp[1]}: nothing is committed for it")
            offset = old + target.value
        case "offset":
            offset = target.value
        case "file":
            offset = target_offset
    if offset > log_end:
        return reset(log_end, f"{offset} is after the log end offset {log_end}")
    if offset < log_start:
        return reset(log_start, f"{offset} is before the log start offset {log_start}")
    return reset(offset)


class PlanLine(NamedTuple):
    """One line of a plan file. Without a group it applies to the one group of the command line."""

    group: str | None
    topic: str
    partition: int
    offset: int


def parse_plan(text: str, path: str) -> list[PlanLine]:
    """Parse lines of `topic,partition,offset` or of `group,topic,partition,offset`; `path` is for error messages."""
    lines: list[PlanLine] = []
    for number, row in enumerate(csv.reader(io.StringIO(text)), 1):
        if not any(cell.strip() for cell in row):
            continue
        cells = [cell.strip() for cell in row]
        numbers = cells[-2:]
        if len(cells) not in (3, 4) or not all(cell.isascii() and cell.isdigit() for cell in numbers):
            raise CliError(f"{path}, line {number}: expected [GROUP,]TOPIC,PARTITION,OFFSET, not {','.join(row)!r}")
        group = cells[0] if len(cells) == 4 else None
        if lines and (lines[0].group is None) != (group is None):
            raise CliError(f"{path}, line {number}: either all lines have a group or none has")
        lines.append(PlanLine(group, cells[-3], int(numbers[0]), int(numbers[1])))
    if not lines:
        raise CliError(f"{path} has no offsets")
    return lines


def format_plan(plans: Iterable[tuple[str, Sequence[OffsetReset]]], with_groups: bool) -> str:
    """Return plans by group as a file that `parse_plan` and Kafka's tool read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group, plan in plans:
        for reset in plan:
            writer.writerow([*([group] if with_groups else []), reset.topic, reset.partition, reset.new])
    return text.getvalue()
