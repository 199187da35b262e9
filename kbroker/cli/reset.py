"""`kbroker groups reset-offsets`: a plan of where committed offsets go, and its execution."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import typer

from kbroker.cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin,
    committed_offsets,
    partitions_of,
    refusal,
)
from kbroker.cli.errors import CliError, usage
from kbroker.cli.output import Cell, note, print_json, print_table
from kbroker.cli.values import duration_ms, moment_ms, topic_choice

INACTIVE = ("Empty", "Dead")

Bounds = Mapping[Any, int]  # by kafka.TopicPartition


class Target(NamedTuple):
    """Where reset-offsets moves a group to; `number` is an offset, a distance, or ms since the epoch."""

    kind: Literal["earliest", "latest", "current", "offset", "shift", "time"]
    number: int = 0


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", show_default=False)],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC[:P,...]", help="Repeat for more.")
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic with committed offsets.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To what is committed now.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record at or after it (ISO 8601, UTC)."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option("--by-duration", metavar="DURATION", help="To the first record since so long ago: 1h30m."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="Forward, or back when negative.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without it the plan is only shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan (the default).")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move a group's committed offsets. The group must have no members. New offsets stay within the log."""
    now_ms = round(time.time() * 1000)
    choices = (
        Target("earliest") if to_earliest else None,
        Target("latest") if to_latest else None,
        Target("current") if to_current else None,
        Target("offset", to_offset) if to_offset is not None else None,
        Target("time", moment_ms(to_datetime, now_ms)) if to_datetime is not None else None,
        Target("time", now_ms - duration_ms(by_duration)) if by_duration is not None else None,
        Target("shift", shift_by) if shift_by is not None else None,
    )
    given = [target for target in choices if target is not None]
    if len(given) != 1:
        raise usage(
            "say where to, once: --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
            "--by-duration or --shift-by"
        )
    if execute and dry_run:
        raise usage("--execute and --dry-run exclude each other")
    if bool(topic) == all_topics:
        raise usage("say which topics: --topic TOPIC[:PARTITION,...] or --all-topics")
    with admin(bootstrap) as client:
        _require_inactive(client, group)
        committed = committed_offsets(client, group)
        partitions = sorted(committed) if all_topics else _chosen(client, topic or [])
        if not partitions:
            raise CliError(f"group {group} has no committed offsets")
        plan = plan_reset(partitions, given[0], committed, *_bounds(client, partitions, given[0]))
        if execute:
            _commit(client, group, plan)
    _print_plan(group, plan, execute, as_json)


def _require_inactive(client: Any, group: str) -> None:
    state = client.describe_groups([group])[group]["group_state"]
    if state not in INACTIVE:
        raise CliError(f"group {group} is in use ({state}): its members would not notice; stop them first")


def _chosen(client: Any, texts: Sequence[str]) -> list[Any]:
    from kafka import TopicPartition

    choices = [topic_choice(text) for text in texts]
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

    def offsets(spec: Any) -> Bounds:
        found = client.list_partition_offsets(dict.fromkeys(partitions, spec))
        return {tp: at.offset for tp, at in found.items()}

    at_time = offsets(target.number) if target.kind == "time" else {}
    return offsets(OffsetSpec.EARLIEST), offsets(OffsetSpec.LATEST), at_time


class Move(NamedTuple):
    """One partition's move; `old` is None when nothing is committed."""

    topic: str
    partition: int
    old: int | None
    new: int


def plan_reset(
    partitions: Sequence[Any], target: Target, committed: Bounds, first: Bounds, end: Bounds, at_time: Bounds
) -> list[Move]:
    """Where each partition's committed offset goes, always within the log, as Kafka's tool does it."""

    def wanted(tp: Any) -> int:
        if target.kind == "earliest":
            return first[tp]
        if target.kind == "latest":
            return end[tp]
        if target.kind == "offset":
            return target.number
        if target.kind == "time":
            found = at_time.get(tp, -1)
            return found if found >= 0 else end[tp]
        if tp in committed:
            return committed[tp] + (target.number if target.kind == "shift" else 0)
        if target.kind == "shift":
            raise CliError(f"cannot shift {tp[0]}-{tp[1]}: nothing is committed for it")
        return end[tp]

    return [Move(tp[0], tp[1], committed.get(tp), max(first[tp], min(wanted(tp), end[tp]))) for tp in partitions]


def _commit(client: Any, group: str, plan: Sequence[Move]) -> None:
    from kafka import OffsetAndMetadata, TopicPartition

    offsets = {TopicPartition(move.topic, move.partition): OffsetAndMetadata(move.new, "", None) for move in plan}
    for tp, error in client.alter_group_offsets(group, offsets).items():
        if error.errno:
            raise CliError(f"group {group}, {tp.topic}-{tp.partition}: {refusal(error.errno)}")


def _print_plan(group: str, plan: Sequence[Move], executed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"group": group, "executed": executed, "offsets": [move._asdict() for move in plan]})
        return
    rows: list[list[Cell]] = [
        [
            move.topic,
            move.partition,
            move.old,
            move.new,
            None if move.old is None else f"{move.new - move.old:+d}",
        ]
        for move in plan
    ]
    print_table(("topic", "partition", "old", "new", "change"), rows)
    if not executed:
        note("a plan only: nothing has changed (--execute does it)")
