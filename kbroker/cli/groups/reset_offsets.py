"""`kbroker groups reset-offsets`: plan new committed offsets of groups, and commit them with --execute.

Plan files have the form of kafka-consumer-groups.
"""

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import typer

from kbroker.cli.common.client import admin_client, error_code_text, partition_leaders, select_partitions
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, argument, option
from kbroker.cli.common.output import Cell, ProgressBar, print_note, print_rows
from kbroker.cli.common.values import INT64, parse_duration_ms, parse_time_ms, parse_topic_partitions
from kbroker.client.admin import chunks
from kbroker.client.cluster import ClusterClient
from kbroker.client.group_descriptions import SHARE, GroupDescription, describe_group
from kbroker.client.groups import alter_share_offsets, commit_offsets, committed_offsets, list_groups, share_offsets
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.common import TopicPartition

Offsets = Mapping[TopicPartition, int]


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
    partitions: Sequence[TopicPartition],
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
    tp: TopicPartition, target: ResetTarget, old: int | None, log_start: int, log_end: int, target_offset: int
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


INACTIVE_STATES = ("Empty", "Dead")
MAX_PARTITIONS = 500  # per request

GroupPlan = tuple[GroupDescription, list[OffsetReset]]


def reset_offsets(
    groups: Annotated[list[str] | None, argument("[GROUP...]", complete=complete_groups)] = None,
    all_groups: Annotated[bool, option("--all-groups", "Reset every group.")] = False,
    topic: Annotated[
        list[str] | None,
        option(
            "--topic -t TOPIC[:PARTITION,...]",
            "Reset this topic, or some of its partitions; repeatable.",
            complete=complete_topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, option("--all-topics", "Reset every topic that the group has committed offsets for.")
    ] = False,
    to_earliest: Annotated[bool, option("--to-earliest", "To the first record.")] = False,
    to_latest: Annotated[bool, option("--to-latest", "To the end of the log.")] = False,
    to_current: Annotated[bool, option("--to-current", "To the committed offset.")] = False,
    to_offset: Annotated[int | None, option("--to-offset OFFSET", "To this offset.", max=INT64)] = None,
    to_datetime: Annotated[
        str | None, option("--to-datetime TIME", "To the first record at or after this time (ISO 8601, default UTC).")
    ] = None,
    by_duration: Annotated[
        str | None, option("--by-duration DURATION", "To the first record of the last DURATION, e.g. 1h30m.")
    ] = None,
    shift_by: Annotated[
        int | None, option("--shift-by N", "Forward by N offsets, backward if negative.", min=-INT64, max=INT64)
    ] = None,
    from_file: Annotated[
        str | None, option("--from-file FILE", "To the offsets in lines of [GROUP,]TOPIC,PARTITION,OFFSET.")
    ] = None,
    execute: Annotated[bool, option("--execute", "Commit the offsets; without it, only plan.")] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only plan (the default).")] = False,
    export: Annotated[bool, option("--export", "Print the plan as a file for --from-file.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Reset committed offsets of groups without members. Prints the plan; --execute commits it.

    Example: kbroker groups reset-offsets billing --topic orders --to-earliest --execute
    """
    now_ms = round(time.time() * 1000)
    options = (
        ResetTarget("earliest") if to_earliest else None,
        ResetTarget("latest") if to_latest else None,
        ResetTarget("current") if to_current else None,
        ResetTarget("offset", to_offset) if to_offset is not None else None,
        ResetTarget("time", parse_time_ms(to_datetime, now_ms)) if to_datetime is not None else None,
        ResetTarget("time", now_ms - parse_duration_ms(by_duration)) if by_duration is not None else None,
        ResetTarget("shift", shift_by) if shift_by is not None else None,
        ResetTarget("file") if from_file is not None else None,
    )
    targets = [target for target in options if target is not None]
    if len(targets) != 1:
        raise usage_error(
            "choose one target: --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by or --from-file"
        )
    if execute and dry_run:
        raise usage_error("--execute and --dry-run exclude each other")
    if export and as_json:
        raise usage_error("--export and --json exclude each other")
    if from_file is not None and (topic or all_topics):
        raise usage_error("--from-file names the topics: it excludes --topic and --all-topics")
    if from_file is None and bool(topic) == all_topics:
        raise usage_error("choose topics: --topic TOPIC[:PARTITION,...] or --all-topics")
    lines = _read_plan_file(from_file) if from_file is not None else []
    in_file = [line.group for line in lines if line.group is not None]
    if lines and not in_file and len(set(groups or ())) != 1:
        raise usage_error("the file names no groups: name one GROUP")
    selected = list(dict.fromkeys(groups or in_file))
    if bool(selected) == all_groups or "" in selected:
        raise usage_error("choose groups: GROUP... or --all-groups")

    with admin_client(bootstrap) as client:
        if all_groups:
            selected = sorted(group.group_id for group in list_groups(client))
        plans = _plan_groups(client, selected, targets[0], topic or [], lines)
        if execute:
            for group, plan in plans:
                commit_reset(client, group, plan)
    named = [(group.group_id, plan) for group, plan in plans]
    if export:
        print(format_plan(named, with_groups=all_groups or len(selected) > 1), end="")
    elif as_json or named:
        document = [
            {"group": group, "executed": execute, "offsets": [reset._asdict() for reset in plan]}
            for group, plan in named
        ]
        rows: list[list[Cell]] = [
            [group, *reset[:4], None if reset.old is None else f"{reset.new - reset.old:+d}"]
            for group, plan in named
            for reset in plan
        ]
        print_rows(as_json, document, ("group", "topic", "partition", "old", "new", "change"), rows)
    if not execute and plans:
        print_note("nothing was changed: use --execute to commit these offsets")
    if len(plans) < len(selected):
        raise typer.Exit(1)


def _read_plan_file(path: str) -> list[PlanLine]:
    try:
        with open(path, encoding="utf-8") as file:
            return parse_plan(file.read(), path)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text") from None


def _plan_groups(
    client: ClusterClient, groups: Sequence[str], target: ResetTarget, topics: Sequence[str], lines: Sequence[PlanLine]
) -> list[GroupPlan]:
    """Plan each group, for TOPIC[:PARTITION,...] texts (none: all topics with commits) or for the lines of a file.

    A group that cannot be reset is reported and skipped.
    """
    in_file = [f"{line.topic}:{line.partition}" for line in lines if line.group is None or line.group in groups]
    selections = [parse_topic_partitions(text) for text in topics or in_file]
    leaders = partition_leaders(client, sorted({selection.topic for selection in selections}))
    partitions = sorted(TopicPartition(*partition) for partition in select_partitions(leaders, selections))
    plans = []
    for description in [describe_group(client, group) for group in groups]:
        group = description.group_id
        if description.state not in INACTIVE_STATES:
            # The message of kafka-consumer-groups.
            print_error(
                f"Assignments can only be reset if the group '{group}' is inactive, "
                f"but the current state is {description.state}."
            )
            continue
        try:
            targets = {TopicPartition(*line[1:3]): line.offset for line in lines if line.group in (None, group)}
            if lines:
                chosen = [tp for tp in partitions if tp in targets]
                if not chosen:
                    raise CliError("the file has no offsets for it")
            else:
                chosen = partitions
            plan = plan_group(client, description, target, chosen, targets)
        except CliError as error:
            print_error(f"group {group}: {error}")
            continue
        for reset in plan:
            if reset.note is not None:
                print_note(f"{group}, {reset.topic}-{reset.partition}: reset to {reset.new}: {reset.note}")
        plans.append((description, plan))
    return plans


def plan_group(
    client: ClusterClient,
    group: GroupDescription,
    target: ResetTarget,
    partitions: Sequence[TopicPartition] = (),
    file_offsets: Offsets | None = None,
) -> list[OffsetReset]:
    """Return the reset of these partitions, by default of all that the group has offsets for. Raises CliError."""
    committed = _current_offsets(client, group)
    chosen = partitions or sorted(committed)
    if not chosen:
        raise CliError("nothing is committed")
    log_start, log_end, at_time = _look_up_offsets(client, chosen, target)
    return plan_reset(chosen, target, committed, log_start, log_end, file_offsets or at_time)


def _current_offsets(client: ClusterClient, group: GroupDescription) -> Offsets:
    """Return the committed offsets of a group; the start offsets of a share group."""
    if group.type == SHARE:
        return {partition: start for partition, (start, _) in share_offsets(client, group.group_id).items()}
    return committed_offsets(client, group.group_id)


def _look_up_offsets(
    client: ClusterClient, partitions: Sequence[TopicPartition], target: ResetTarget
) -> tuple[Offsets, Offsets, Offsets]:
    """Return log start offsets, log end offsets, and for a time its offsets (negative if no record is that late)."""
    timestamps = [EARLIEST, LATEST, *([target.value] if target.kind == "time" else [])]
    with ProgressBar("looking up offsets", len(timestamps) * len(partitions)) as progress:

        def look_up(timestamp: int) -> Offsets:
            offsets: dict[TopicPartition, int] = {}
            for chunk in chunks(partitions, MAX_PARTITIONS):
                offsets |= list_offsets(client, dict.fromkeys(chunk, timestamp))
                progress.advance(len(chunk))
            return offsets

        log_start, log_end, *at_time = map(look_up, timestamps)
    return log_start, log_end, at_time[0] if at_time else {}


def commit_reset(client: ClusterClient, group: GroupDescription, plan: Sequence[OffsetReset]) -> None:
    """Commit the new offsets of a plan. Raises CliError, for example because the group has members by now."""
    commit = alter_share_offsets if group.type == SHARE else commit_offsets
    with ProgressBar("committing", len(plan)) as progress:
        for chunk in chunks(plan, MAX_PARTITIONS):
            offsets = {(reset.topic, reset.partition): reset.new for reset in chunk}
            for partition, code in commit(client, group.group_id, offsets).items():
                if code:
                    raise CliError(f"group {group.group_id}, {partition}: {error_code_text(code)}")
            progress.advance(len(chunk))
