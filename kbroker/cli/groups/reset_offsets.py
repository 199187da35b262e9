"""`kbroker groups reset-offsets`: plan new committed offsets of groups, and commit them with --execute."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from kbroker.cli.common.client import (
    admin_client,
    chunks,
    committed_offsets,
    error_code_text,
    partition_leaders,
    select_partitions,
)
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import Cell, print_json, print_note, print_table
from kbroker.cli.common.parsing import INT64, parse_duration_ms, parse_time_ms, parse_topic_partitions
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.groups.reset_plan import (
    OffsetReset,
    Offsets,
    PlanLine,
    ResetTarget,
    format_plan,
    parse_plan,
    plan_reset,
)

INACTIVE_STATES = ("Empty", "Dead")
MAX_PARTITIONS = 500  # per request

GroupPlan = tuple[str, list[OffsetReset]]


class ResetSelection(NamedTuple):
    """The offsets to reset: a target for TOPIC[:PARTITION,...] texts (none: all topics with commits), or a plan."""

    target: ResetTarget
    topics: Sequence[str]
    lines: Sequence[PlanLine]


def reset_offsets(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP...]", show_default=False, autocompletion=complete_groups)
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Reset every group.")] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:PARTITION,...]",
            help="Reset this topic, or some of its partitions; repeatable.",
            autocompletion=complete_topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset every topic that the group has committed offsets for.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of the log.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To the committed offset.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="OFFSET", min=0, max=INT64, help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first record at or after this time (ISO 8601, default UTC)."
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="DURATION", help="To the first record of the last DURATION, e.g. 1h30m."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by", metavar="N", min=-INT64, max=INT64, help="Forward by N offsets, backward if negative."
        ),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="To the offsets in lines of [GROUP,]TOPIC,PARTITION,OFFSET."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Commit the offsets; without it, only plan.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan (the default).")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the plan as a file for --from-file.")] = False,
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
    selected = _select_groups(groups or [], lines)
    if bool(selected) == all_groups or "" in selected:
        raise usage_error("choose groups: GROUP... or --all-groups")

    with admin_client(bootstrap) as client:
        if all_groups:
            selected = sorted(group["group_id"] for group in client.list_groups())
        plans = _plan_groups(client, selected, ResetSelection(targets[0], topic or [], lines))
        if execute:
            for group, plan in plans:
                _commit(client, group, plan)
    _print_plans(plans, execute, export, as_json, with_groups=all_groups or len(selected) > 1)
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


def _select_groups(groups: Sequence[str], lines: Sequence[PlanLine]) -> list[str]:
    """Return the groups of the command line or else those of the file, without duplicates."""
    in_file = [line.group for line in lines if line.group is not None]
    if lines and not in_file and len(set(groups)) != 1:
        raise usage_error("the file names no groups: name one GROUP")
    return list(dict.fromkeys(groups or in_file))


def _plan_groups(client: Any, groups: Sequence[str], selection: ResetSelection) -> list[GroupPlan]:
    """Plan each group. A group that cannot be reset is reported and skipped."""
    lines = [line for line in selection.lines if line.group is None or line.group in groups]
    texts = selection.topics or [f"{line.topic}:{line.partition}" for line in lines]
    partitions = _existing_partitions(client, texts)
    states = {group: client.describe_groups([group])[group]["group_state"] for group in groups}
    plans = []
    for group in groups:
        if states[group] not in INACTIVE_STATES:
            # The message of kafka-consumer-groups.
            print_error(
                f"Assignments can only be reset if the group '{group}' is inactive, "
                f"but the current state is {states[group]}."
            )
            continue
        try:
            plans.append((group, _plan_group(client, group, selection, partitions)))
        except CliError as error:
            print_error(f"group {group}: {error}")
    return plans


def _plan_group(client: Any, group: str, selection: ResetSelection, selected: Sequence[Any]) -> list[OffsetReset]:
    """Plan one group; `selected` are the partitions of --topic, or those that the file has for any group."""
    committed = committed_offsets(client, group)
    in_file = {(line.topic, line.partition): line.offset for line in selection.lines if line.group in (None, group)}
    if selection.lines:
        partitions = [tp for tp in selected if tp in in_file]
    else:
        partitions = list(selected) if selection.topics else sorted(committed)
    if not partitions:
        raise CliError("the file has no offsets for it" if selection.lines else "nothing is committed")
    log_start, log_end, at_time = _look_up_offsets(client, partitions, selection.target)
    plan = plan_reset(partitions, selection.target, committed, log_start, log_end, in_file or at_time)
    for reset in plan:
        if reset.note is not None:
            print_note(f"{group}, {reset.topic}-{reset.partition}: reset to {reset.new}: {reset.note}")
    return plan


def _existing_partitions(client: Any, texts: Sequence[str]) -> list[Any]:
    from kafka import TopicPartition

    selections = [parse_topic_partitions(text) for text in texts]
    leaders = partition_leaders(client, sorted({selection.topic for selection in selections}))
    return sorted(TopicPartition(*partition) for partition in select_partitions(leaders, selections))


def _look_up_offsets(client: Any, partitions: Sequence[Any], target: ResetTarget) -> tuple[Offsets, Offsets, Offsets]:
    """Return log start offsets, log end offsets, and for a time its offsets (negative if no record is that late)."""
    from kafka.admin import OffsetSpec

    specs = [OffsetSpec.EARLIEST, OffsetSpec.LATEST, *([target.value] if target.kind == "time" else [])]
    with ProgressBar("looking up offsets", len(specs) * len(partitions)) as progress:

        def look_up(spec: Any) -> Offsets:
            offsets = {}
            for chunk in chunks(partitions, MAX_PARTITIONS):
                response = client.list_partition_offsets(dict.fromkeys(chunk, spec))
                offsets.update({tp: at.offset for tp, at in response.items()})
                progress.advance(len(chunk))
            return offsets

        log_start, log_end, *at_time = map(look_up, specs)
    return log_start, log_end, at_time[0] if at_time else {}


def _commit(client: Any, group: str, plan: Sequence[OffsetReset]) -> None:
    from kafka import OffsetAndMetadata, TopicPartition

    with ProgressBar("committing", len(plan)) as progress:
        for chunk in chunks(plan, MAX_PARTITIONS):
            offsets = {
                TopicPartition(reset.topic, reset.partition): OffsetAndMetadata(reset.new, "", None) for reset in chunk
            }
            for tp, error in client.alter_group_offsets(group, offsets).items():
                if error.errno:
                    raise CliError(f"group {group}, {tp.topic}-{tp.partition}: {error_code_text(error.errno)}")
            progress.advance(len(chunk))


def _print_plans(plans: Sequence[GroupPlan], executed: bool, export: bool, as_json: bool, *, with_groups: bool) -> None:
    if export:
        print(format_plan(plans, with_groups), end="")
    elif as_json:
        print_json(
            [
                {"group": group, "executed": executed, "offsets": [reset._asdict() for reset in plan]}
                for group, plan in plans
            ]
        )
    elif plans:
        rows = [_row(group, reset) for group, plan in plans for reset in plan]
        print_table(("group", "topic", "partition", "old", "new", "change"), rows)
    if not executed and plans:
        print_note("nothing was changed: use --execute to commit these offsets")


def _row(group: str, reset: OffsetReset) -> list[Cell]:
    change = None if reset.old is None else f"{reset.new - reset.old:+d}"
    return [group, reset.topic, reset.partition, reset.old, reset.new, change]
