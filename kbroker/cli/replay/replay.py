"""`kbroker replay`: produce the records of an archive to topics, each once."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.common.client import wait_notes
from kbroker.cli.common.completion import complete_groups
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    BrokerWait,
    SparkOptions,
    argument,
    option,
    pipeline_errors,
    pipeline_usage_errors,
    spark_session_for,
)
from kbroker.cli.common.output import ProgressBar, print_heading, print_json, print_note, print_table
from kbroker.cli.common.values import (
    INT32,
    count_text,
    format_size,
    format_timestamp,
    parse_configs,
    parse_duration_ms,
    parse_time_ms,
)
from kbroker.client.retries import reported_wait

if TYPE_CHECKING:
    from kbroker.pipeline.replay.group_offsets import GroupPosition
    from kbroker.pipeline.replay.plan import ReplayPlan, ReplayRequest
    from kbroker.pipeline.replay.preparation import PreparedReplay, ReplayContext
    from kbroker.pipeline.replay.run import ReplaySummary
    from kbroker.pipeline.replay.sending import SpeedLimit


ALL = "all"


def print_dry_run(prepared: "PreparedReplay", as_json: bool) -> None:
    """Print what a prepared replay would do."""
    positions = prepared.group_positions()
    for warning in prepared.warnings:
        print_note(f"note: {warning}")
    if as_json:
        print_json(_dry_run_json(prepared, positions))
        return
    rows = sum(totals.rows for totals in prepared.totals.values())
    files = [file for of_topic in prepared.records.files().values() for file in of_topic]
    size = format_size(sum(file.size for file in files))
    print_heading("would replay", f"{count_text(rows, 'record')} in {count_text(len(files), 'file')} of {size}")
    print_table(
        ("topic", "partition", "records", "first", "last", "at offset"),
        [
            [
                *target,
                totals.rows,
                format_timestamp(totals.from_ms),
                format_timestamp(totals.to_ms),
                prepared.start_offset(target),
            ]
            for target, totals in prepared.totals.items()
        ],
    )
    for name, topic in prepared.new_topics.items():
        configs = "".join(f" {config}={value}" for config, value in sorted(topic.configs.items()))
        print_note(f"would create topic {name} with {count_text(topic.partitions, 'partition')}{configs}")
    if positions:
        print_heading("groups", "offsets that would be committed")
        print_table(
            ("group", "topic", "partition", "offset"), [list(row.values()) for row in _group_rows(prepared, positions)]
        )
    print_note("dry run: nothing was created or sent")


def _group_rows(prepared: "PreparedReplay", positions: "Sequence[GroupPosition]") -> list[dict[str, Any]]:
    return [
        {
            "group": prepared.request.group_prefix + group,
            **target._asdict(),
            "offset": prepared.start_offset(target) + position,
        }
        for group, target, position in positions
    ]


def _dry_run_json(prepared: "PreparedReplay", positions: "Sequence[GroupPosition]") -> dict[str, Any]:
    return {
        "dry_run": True,
        "records": sum(totals.rows for totals in prepared.totals.values()),
        "targets": [
            {
                **target._asdict(),
                "records": totals.rows,
                "from_ms": totals.from_ms,
                "to_ms": totals.to_ms,
                "offset": prepared.start_offset(target),
            }
            for target, totals in prepared.totals.items()
        ],
        "creates": [
            {
                "topic": name,
                "partition_count": topic.partitions,
                "configs": [{"name": config, "value": value} for config, value in topic.configs.items()],
            }
            for name, topic in prepared.new_topics.items()
        ],
        "groups": _group_rows(prepared, positions),
        "warnings": list(prepared.warnings),
    }


def print_summary(summary: "ReplaySummary", as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        print_json(_summary_json(summary))
        return
    sent_before = summary.plan.rows - summary.sent
    already = f" ({sent_before} were already there)" if sent_before else ""
    rate = f", {summary.sent / max(summary.seconds, 1e-9):.0f} records/s" if summary.sent else ""
    print(f"replay {summary.plan.id}: {count_text(summary.sent, 'record')} in {summary.seconds:.1f} s{rate}{already}")
    for group, offsets in summary.groups.items():
        print(f"group {group}: {', '.join(f'{target}: {offset}' for target, offset in offsets.items())}")


def _summary_json(summary: "ReplaySummary") -> dict[str, Any]:
    starts = summary.plan.starts()
    return {
        "replay": summary.plan.id,
        "records": summary.plan.rows,
        "sent": summary.sent,
        "seconds": round(summary.seconds, 3),
        "targets": [
            {**target._asdict(), "records": count, "offset": starts[target].offset}
            for target, count in summary.plan.counts().items()
        ],
        "groups": [
            {"group": group, **target._asdict(), "offset": offset}
            for group, offsets in summary.groups.items()
            for target, offset in offsets.items()
        ],
    }


def replay(
    ctx: typer.Context,
    directory: Annotated[str, argument("DIR", "Archive: a path or URI.")],
    topics: Annotated[list[str] | None, argument("TOPIC...", "Archived topics to replay.")] = None,
    to: Annotated[
        str | None, option("--to TOPIC", "Produce to this topic.", show_default="topics of the same names")
    ] = None,
    prefix: Annotated[str | None, option("--prefix TEXT", "Add this prefix to the names of the target topics.")] = None,
    append: Annotated[bool, option("--append", "Allow target topics that are not empty.")] = False,
    partitions_by: Annotated[
        str, option("--partitions-by partition|key", "Keep each record's partition, or choose it by the key.")
    ] = "partition",
    config: Annotated[
        list[str] | None,
        option("--config NAME=VALUE", "Override an archived config of topics that are created; repeatable."),
    ] = None,
    from_: Annotated[str | None, option("--from TIME", "Only records with this timestamp or a later one.")] = None,
    until: Annotated[str | None, option("--until TIME", "Only records with an earlier timestamp.")] = None,
    offsets: Annotated[
        list[str] | None, option("--offsets PARTITION:START-END", "Only these offsets, END excluded; repeatable.")
    ] = None,
    partition: Annotated[
        list[int] | None, option("--partition -p PARTITION", "Only this partition; repeatable.", max=INT32)
    ] = None,
    key: Annotated[str | None, option("--key -k TEXT", "Only records with this key.")] = None,
    key_regex: Annotated[
        str | None, option("--key-regex REGEX", "Only keys in which this Java regular expression is found.")
    ] = None,
    header: Annotated[
        list[str] | None,
        option("--header -H NAME[=VALUE]", "Only records with this header; repeat to require several."),
    ] = None,
    origin_headers: Annotated[
        bool,
        option("--origin-headers/--no-origin-headers", "Add headers with the archived topic, partition and offset."),
    ] = True,
    rate: Annotated[float | None, option("N", "Send at most N records per second.", show_default="no limit")] = None,
    speed: Annotated[float | None, option("N", "Send at N times real time, by the timestamps.")] = None,
    compression: Annotated[str, option("--compression -z CODEC", "gzip, snappy, lz4, zstd or none.")] = "zstd",
    restore_groups: Annotated[
        list[str] | None,
        option(
            "--restore-groups GROUP|all",
            "Commit the group's archived offsets, translated to the target topics; repeatable.",
            complete=complete_groups,
        ),
    ] = None,
    group_prefix: Annotated[
        str, option("--group-prefix TEXT", "Add this prefix to the names of the restored groups.")
    ] = "",
    dry_run: Annotated[bool, option("--dry-run", "Print what would be sent, and send nothing.")] = False,
    resume: Annotated[str | None, option("--resume ID", "Continue this replay with the options of its start.")] = None,
    new: Annotated[bool, option("--new", "Start a new replay, even if the same command left one unfinished.")] = False,
    broker_wait: BrokerWait = "2m",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    spark: SparkOptions,
) -> None:
    """Produce archived records to topics, each once, with keys, values, headers, timestamps and partitions.

    After a failure, the same command or --resume continues where the replay stopped, without duplicates.
    TIME is ISO 8601 (default UTC), milliseconds since the epoch, or a duration ago such as 15m.

    Example: kbroker replay /data/archive orders --to orders-copy --from 2026-01-31
    """
    from kbroker.pipeline.replay.batch_encoder import parse_codec
    from kbroker.pipeline.replay.group_offsets import ALL_GROUPS
    from kbroker.pipeline.replay.plan import ReplayRequest, load_plan
    from kbroker.pipeline.replay.preparation import prepare_replay
    from kbroker.pipeline.replay.routing import target_names
    from kbroker.pipeline.replay.selection import Selection, parse_offset_range
    from kbroker.pipeline.replay.sending import SpeedLimit

    if rate is not None and speed is not None:
        raise usage_error("--rate and --speed exclude each other")
    for name, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < float("inf"):
            raise usage_error(f"{name} must be a positive number, not {number:g}")
    patience_s = parse_duration_ms(broker_wait) / 1000
    request = None
    if resume is not None:
        _require_resume_parameters(ctx)
    else:
        if not topics:
            raise usage_error("name at least one TOPIC to replay")
        if to is not None and prefix is not None:
            raise usage_error("--to and --prefix exclude each other")
        if partitions_by not in ("partition", "key"):
            raise usage_error(f"--partitions-by must be partition or key, not {partitions_by!r}")
        if group_prefix and not restore_groups:
            raise usage_error("--group-prefix requires --restore-groups")
        now_ms = time.time_ns() // 1_000_000
        from_ms, until_ms = (None if text is None else parse_time_ms(text, now_ms) for text in (from_, until))
        if from_ms is not None and until_ms is not None and from_ms >= until_ms:
            raise usage_error("--from must be before --until")
        names = target_names(dict.fromkeys(topics), to, prefix)
        with pipeline_usage_errors():
            ranges = tuple(map(parse_offset_range, offsets or ()))
            parse_codec(compression)
        headers = tuple(
            (name, value if sign else None) for name, sign, value in (text.partition("=") for text in header or ())
        )
        partitions = tuple(dict.fromkeys(partition or ()))
        selection = Selection(tuple(names), from_ms, until_ms, ranges, partitions, key, key_regex, headers)
        groups = (ALL_GROUPS,) if ALL in (restore_groups or ()) else tuple(restore_groups or ())
        by_key = partitions_by == "key"
        request = ReplayRequest(selection, names, by_key, origin_headers, append, compression, groups, group_prefix)
    configs = parse_configs(config or [])
    with pipeline_errors():
        _check_before_spark(directory, topics or [], bootstrap)
    with (
        spark_session_for("kbroker replay", spark) as session,
        _replay_context(session, directory, bootstrap, patience_s) as context,
    ):
        if request is not None and dry_run:
            print_dry_run(prepare_replay(context, request, configs), as_json)
            return
        if request is None:
            plan = load_plan(context.storage, resume or "")
        else:
            plan = _find_or_create_plan(context, request, new, configs, quiet=as_json)
        summary = _execute(context, plan, SpeedLimit(rate, speed))
    print_summary(summary, as_json)


# The parameters that can be given with --resume; the stored plan has all others.
RESUME_PARAMETERS = frozenset(
    (
        "directory",
        "resume",
        "rate",
        "speed",
        "broker_wait",
        "as_json",
        "bootstrap",
        "command_config",
        "kafka",
        "master",
        "jars",
        "conf",
    )
)


def _require_resume_parameters(ctx: typer.Context) -> None:
    """Raise CliError for command line arguments that --resume excludes."""
    excluded = [
        "TOPIC" if param.name == "topics" else param.opts[0]
        for param in ctx.command.params
        if param.name not in RESUME_PARAMETERS and _is_given(ctx, param.name or "")
    ]
    if excluded:
        raise usage_error(
            f"--resume continues a replay with the options of its start and excludes {', '.join(excluded)}"
        )


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_before_spark(directory: str, topics: Sequence[str], bootstrap: str) -> None:
    """Raise PipelineError for problems that can be found without Spark, which takes seconds to start."""
    from kbroker.archive.catalogs import open_archive
    from kbroker.archive.report import require_topics
    from kbroker.pipeline.cluster_admin import require_reachable
    from kbroker.pipeline.spark.installation import require_spark

    require_spark(os.environ)
    require_topics(open_archive(directory), topics)
    with reported_wait(wait_notes(), f"no response from {bootstrap}"):
        require_reachable(bootstrap)


@contextmanager
def _replay_context(session: Any, directory: str, bootstrap: str, patience_s: float) -> "Iterator[ReplayContext]":
    from kbroker.archive.catalogs import open_archive
    from kbroker.pipeline.cluster_admin import cluster_client
    from kbroker.pipeline.replay.archived_rows import plan_storage
    from kbroker.pipeline.replay.preparation import ReplayContext

    with cluster_client(bootstrap) as cluster:
        cluster.on_wait = wait_notes()
        archive = open_archive(directory)
        yield ReplayContext(session, archive, plan_storage(archive), cluster, bootstrap, print_note, patience_s)


def _find_or_create_plan(
    context: "ReplayContext", request: "ReplayRequest", new: bool, configs: Mapping[str, str], *, quiet: bool
) -> "ReplayPlan":
    from kbroker.pipeline.replay.plan import find_unfinished
    from kbroker.pipeline.replay.preparation import prepare_replay
    from kbroker.pipeline.replay.run import create_plan, target_cluster_id

    unfinished = None if new else find_unfinished(context.storage, request, target_cluster_id(context))
    if unfinished is not None:
        print_note(f"continuing replay {unfinished.id}, which the same command left unfinished (--new starts another)")
        return unfinished
    prepared = prepare_replay(context, request, configs)
    for warning in prepared.warnings:
        print_note(f"note: {warning}")
    plan = create_plan(context, prepared, new)
    if not quiet:
        print_note(
            f"replay {plan.id}: {count_text(plan.rows, 'record')} (kbroker replay DIR --resume {plan.id} continues it)"
        )
    return plan


def _execute(context: "ReplayContext", plan: "ReplayPlan", limit: "SpeedLimit") -> "ReplaySummary":
    """Execute a plan with a progress bar. Errors name the option that resumes the replay."""
    from kbroker.archive.errors import ArchiveError
    from kbroker.pipeline.replay.run import execute_plan
    from kbroker.pipeline.spark.error_text import error_text, is_spark_error

    try:
        with ProgressBar("replaying", plan.rows) as bar:
            return execute_plan(context, plan, limit, bar.advance_to)
    except Exception as error:
        if not (isinstance(error, ArchiveError) or is_spark_error(error)):
            raise
        detail = str(error) if isinstance(error, ArchiveError) else error_text(error)
        raise ArchiveError(f"{detail.rstrip('.')} (to continue: --resume {plan.id})") from error
