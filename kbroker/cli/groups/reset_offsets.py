"""`kbroker groups reset-offsets`: a plan of where committed offsets go, and its execution."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer

from kbroker.cli.common.client import admin_client, chunks, committed_offsets, error_code_text, partitions_of
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import Cell, print_json, print_note, print_table
from kbroker.cli.common.parsing import INT64, parse_duration_ms, parse_time_ms, parse_topic_partitions
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.groups.reset_plan import Bounds, Line, Move, Target, plan_reset, read_plan, write_plan

INACTIVE = ("Empty", "Dead")
MOST_PARTITIONS = 500  # in one request


def reset_offsets(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="GROUP", show_default=False, autocompletion=complete_groups)
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Every group that there is.")] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:P,...]", help="Repeat for more.", autocompletion=complete_topics),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic with committed offsets.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To what is committed now.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, max=INT64, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record at or after it (ISO 8601, UTC)."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="DURATION", help="To the first record since so long ago: 1h30m."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", min=-INT64, max=INT64, metavar="N", help="Forward, or back when negative."),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="To those in lines of [GROUP,]TOPIC,PARTITION,OFFSET."),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without it the plan is only shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan (the default).")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the plan as --from-file reads it.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move committed offsets of groups, which must have no members."""
    now_ms = round(time.time() * 1000)
    choices = (
        Target("earliest") if to_earliest else None,
        Target("latest") if to_latest else None,
        Target("current") if to_current else None,
        Target("offset", to_offset) if to_offset is not None else None,
        Target("time", parse_time_ms(to_datetime, now_ms)) if to_datetime is not None else None,
        Target("time", now_ms - parse_duration_ms(by_duration)) if by_duration is not None else None,
        Target("shift", shift_by) if shift_by is not None else None,
        Target("file") if from_file is not None else None,
    )
    given = [target for target in choices if target is not None]
    if len(given) != 1:
        raise usage_error(
            "say where to, once: --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration, --shift-by or --from-file"
        )
    if execute and dry_run:
        raise usage_error("--execute and --dry-run exclude each other")
    if export and as_json:
        raise usage_error("--export and --json exclude each other")
    if from_file is not None and (topic or all_topics):
        raise usage_error("the file says which topics: --from-file goes with neither --topic nor --all-topics")
    if from_file is None and bool(topic) == all_topics:
        raise usage_error("say which topics: --topic TOPIC[:PARTITION,...] or --all-topics")
    lines = _read(from_file) if from_file is not None else []
    named = _groups_of(groups or [], lines)
    if bool(named) == all_groups or "" in named:
        raise usage_error("say which groups: GROUP... or --all-groups")

    with admin_client(bootstrap) as client:
        wanted = Wanted(given[0], topic or [], lines)
        if all_groups:
            named = sorted(group["group_id"] for group in client.list_groups())
        plans = _plans(client, named, wanted)
        if execute:
            for group, plan in plans.done:
                _commit(client, group, plan)
    _print(plans.done, execute, export, as_json, several=all_groups or len(named) > 1)
    if plans.refused:
        raise typer.Exit(1)


class Wanted(NamedTuple):
    """What the options ask for: no topics are all with committed offsets; lines are those of a file."""

    target: Target
    topics: Sequence[str]
    lines: Sequence[Line]


class Plans(NamedTuple):
    """Plans by group, and how many groups could not have one, which has been told."""

    done: list[tuple[str, list[Move]]]
    refused: int


def _read(path: str) -> list[Line]:
    try:
        with open(path, encoding="utf-8") as file:
            return read_plan(file.read(), path)
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not UTF-8 text") from None


def _groups_of(named: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """The groups to be reset: those that are named, or else those of the file, each once."""
    in_file = [line.group for line in lines if line.group is not None]
    if lines and not in_file and len(set(named)) != 1:
        raise usage_error("the file names no groups: name the one that it is for")
    return list(dict.fromkeys(named or in_file))


def _plans(client: Any, groups: Sequence[str], wanted: Wanted) -> Plans:
    """One group that cannot be reset does not keep the others from it."""
    done, refused = [], 0
    lines = [line for line in wanted.lines if line.group is None or line.group in groups]
    chosen = _chosen(client, wanted.topics or [f"{line.topic}:{line.partition}" for line in lines])
    states = {group: client.describe_groups([group])[group]["group_state"] for group in groups}
    for group in groups:
        if states[group] not in INACTIVE:
            print_error(
                f"Assignments can only be reset if the group '{group}' is inactive, "
                f"but the current state is {states[group]}."
            )
            refused += 1
            continue
        try:
            done.append((group, _plan(client, group, wanted, chosen)))
        except CliError as error:
            print_error(f"group {group}: {error}")
            refused += 1
    return Plans(done, refused)


def _plan(client: Any, group: str, wanted: Wanted, chosen: Sequence[Any]) -> list[Move]:
    """The plan of one group; `chosen` are the partitions of the options, or those of the file for any group."""
    committed = committed_offsets(client, group)
    found = _in_file(group, wanted.lines)
    if wanted.lines:
        partitions = [tp for tp in chosen if tp in found]
    else:
        partitions = list(chosen) if wanted.topics else sorted(committed)
    if not partitions:
        raise CliError("the file says nothing of it" if wanted.lines else "nothing is committed")
    first, end, at_time = _bounds(client, partitions, wanted.target)
    plan = plan_reset(partitions, wanted.target, committed, first, end, found or at_time)
    for move in plan:
        if move.note is not None:
            print_note(f"{group}, {move.topic}-{move.partition}: goes to {move.new}: {move.note}")
    return plan


def _in_file(group: str, lines: Sequence[Line]) -> dict[tuple[str, int], int]:
    return {(line.topic, line.partition): line.offset for line in lines if line.group in (None, group)}


def _chosen(client: Any, texts: Sequence[str]) -> list[Any]:
    from kafka import TopicPartition

    choices = [parse_topic_partitions(text) for text in texts]
    known = partitions_of(client, sorted({choice.topic for choice in choices}))
    chosen = set()
    for choice in choices:
        for index in known[choice.topic] if choice.partitions is None else choice.partitions:
            if index not in known[choice.topic]:
                raise CliError(f"topic {choice.topic} has no partition {index}: it has {len(known[choice.topic])}")
            chosen.add(TopicPartition(choice.topic, index))
    return sorted(chosen)


def _bounds(client: Any, partitions: Sequence[Any], target: Target) -> tuple[Bounds, Bounds, Bounds]:
    """First offsets, end offsets, and for a time the offsets found (negative: no record that late)."""
    from kafka.admin import OffsetSpec

    specs = [OffsetSpec.EARLIEST, OffsetSpec.LATEST, *([target.number] if target.kind == "time" else [])]
    with ProgressBar("looking up offsets", len(specs) * len(partitions)) as work:

        def offsets(spec: Any) -> Bounds:
            found = {}
            for part in chunks(partitions, MOST_PARTITIONS):
                answer = client.list_partition_offsets(dict.fromkeys(part, spec))
                found.update({tp: at.offset for tp, at in answer.items()})
                work.advance(len(part))
            return found

        first, end, *rest = map(offsets, specs)
    return first, end, rest[0] if rest else {}


def _commit(client: Any, group: str, plan: Sequence[Move]) -> None:
    from kafka import OffsetAndMetadata, TopicPartition

    with ProgressBar("committing", len(plan)) as work:
        for part in chunks(plan, MOST_PARTITIONS):
            offsets = {
                TopicPartition(move.topic, move.partition): OffsetAndMetadata(move.new, "", None) for move in part
            }
            for tp, error in client.alter_group_offsets(group, offsets).items():
                if error.errno:
                    raise CliError(f"group {group}, {tp.topic}-{tp.partition}: {error_code_text(error.errno)}")
            work.advance(len(part))


def _print(
    plans: Sequence[tuple[str, Sequence[Move]]], executed: bool, export: bool, as_json: bool, *, several: bool
) -> None:
    if export:
        print(write_plan(plans, with_groups=several), end="")
    elif as_json:
        print_json(
            [
                {"group": group, "executed": executed, "offsets": [move._asdict() for move in plan]}
                for group, plan in plans
            ]
        )
    elif plans:
        rows: list[list[Cell]] = [_row(group, move) for group, plan in plans for move in plan]
        print_table(("group", "topic", "partition", "old", "new", "change"), rows)
    if not executed and plans:
        print_note("a plan only: nothing has changed (--execute does it)")


def _row(group: str, move: Move) -> list[Cell]:
    change = None if move.old is None else f"{move.new - move.old:+d}"
    return [group, move.topic, move.partition, move.old, move.new, change]
