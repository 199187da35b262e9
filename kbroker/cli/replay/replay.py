"""`kbroker replay`: records of an archive back into topics, each once."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.common.completion import complete_groups
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_note
from kbroker.cli.common.parsing import INT32, parse_assignments, parse_duration_ms, parse_time_ms
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.common.spark_options import BrokerWait, Jars, Master, SparkConf, pipeline_errors, spark_session_for
from kbroker.cli.replay.text import show, tell

if TYPE_CHECKING:
    from kbroker.pipeline.replay.draft import World
    from kbroker.pipeline.replay.job import Limit
    from kbroker.pipeline.replay.plan import Plan, Request
    from kbroker.pipeline.replay.run import Summary
    from kbroker.pipeline.replay.selection import Selection

ALL_GROUPS = "all"


# What acts when a replay is gone on with; its plan says all else.
WITH_RESUME = frozenset(
    ("directory", "resume", "rate", "speed", "broker_wait", "as_json", "bootstrap", "master", "jars", "conf")
)


def replay(
    ctx: typer.Context,
    directory: Annotated[str, typer.Argument(metavar="DIR", show_default=False, help="The archive: a path or a URI.")],
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", show_default=False, help="Archived topics.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="Into this topic.", show_default="the same names")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="TEXT", help="Into topics whose names have this before.")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Into topics that are not empty, too.")] = False,
    partitions_by: Annotated[
        str, typer.Option("--partitions-by", metavar="partition|key", help="Keep partitions, or choose by the key.")
    ] = "partition",
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="Of topics that are created, beside the archived ones."),
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Records of this time and later.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Records before this time.")] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", metavar="PARTITION:START-END", help="Only these, without END; repeat for more."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, max=INT32, help="Only this partition; repeat for more."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="Only this key.")] = None,
    key_regex: Annotated[
        str | None, typer.Option("--key-regex", metavar="REGEX", help="Only keys that it is found in.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME[=VALUE]", help="Only with this header; repeat: with all."),
    ] = None,
    origin_headers: Annotated[
        bool,
        typer.Option("--origin-headers/--no-origin-headers", help="Say in headers where a record comes from."),
    ] = True,
    rate: Annotated[
        float | None, typer.Option(metavar="RECORDS", help="At most so many a second.", show_default="no limit")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(metavar="TIMES", help="As time went by in the records: 1 is real time, 2 double.")
    ] = None,
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="gzip, snappy, lz4, zstd or none.")
    ] = "zstd",
    restore_groups: Annotated[
        list[str] | None,
        typer.Option(
            "--restore-groups",
            metavar="GROUP|all",
            help="Commit its archived offsets, as they are in the target; repeat for more.",
            autocompletion=complete_groups,
        ),
    ] = None,
    group_prefix: Annotated[
        str, typer.Option("--group-prefix", metavar="TEXT", help="Restore groups under names that have this before.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent; nothing is.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="ID", help="Go on with this replay, which says the rest.")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew, even where the same command left a replay unfinished.")
    ] = False,
    broker_wait: BrokerWait = "2m",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Replay archived records into topics: with their keys, values, headers, timestamps and partitions, each once.

    After a kill or a failure the same command, or --resume, goes on where it was; nothing comes twice.
    """
    from kbroker.pipeline.replay.draft import drafted
    from kbroker.pipeline.replay.plan import Request

    limit = _limit(rate, speed)
    patience_s = parse_duration_ms(broker_wait) / 1000
    request = None
    if resume is None:
        names = _targets(topics or [], to, prefix)
        by_key = _by_key(partitions_by)
        now_ms = time.time_ns() // 1_000_000
        times = _times(from_, until, now_ms)
        selection = _selection(list(names), times, offsets or [], partition or [], key, key_regex, header or [])
        groups = _groups(restore_groups or [], group_prefix)
        _check_codec(compression)
        request = Request(selection, names, by_key, origin_headers, append, compression, groups, group_prefix)
    else:
        _check_resume(ctx)
    configs = parse_assignments(config or [])
    with pipeline_errors():
        _look_first(directory, topics or [], bootstrap)
    with (
        spark_session_for("kbroker replay", master, jars, conf) as session,
        _world(session, directory, bootstrap, patience_s) as (
            world,
            work,
        ),
    ):
        if dry_run:
            assert request is not None
            show(drafted(world, request, configs), world, as_json)
            return
        plan = _plan(world, request, resume, new, configs, quiet=as_json)
        with work(plan):
            summary = _sent(world, plan, limit)
    tell(summary, as_json)


def _check_resume(ctx: typer.Context) -> None:
    """Raises CliError for what is given, but for WITH_RESUME."""
    given = [
        "TOPIC" if param.name == "topics" else param.opts[0]
        for param in ctx.command.params
        if param.name not in WITH_RESUME and _given(ctx, param.name or "")
    ]
    if given:
        raise usage_error(f"--resume goes on with a replay as it was begun: it goes without {', '.join(given)}")


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _limit(rate: float | None, speed: float | None) -> "Limit":
    from kbroker.pipeline.replay.job import Limit

    if rate is not None and speed is not None:
        raise usage_error("--rate and --speed say different things: give one of them")
    for name, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < float("inf"):
            raise usage_error(f"{name} must be more than 0")
    return Limit(rate, speed)


def _targets(topics: Sequence[str], to: str | None, prefix: str | None) -> dict[str, str]:
    from kbroker.pipeline.replay.routing import target_names

    if not topics:
        raise usage_error("name the TOPICs to replay")
    if to is not None and prefix is not None:
        raise usage_error("--to and --prefix both name the target: give one of them")
    return target_names(dict.fromkeys(topics), to, prefix)


def _by_key(text: str) -> bool:
    if text not in ("partition", "key"):
        raise usage_error(f"--partitions-by must be partition or key, not {text!r}")
    return text == "key"


def _times(from_: str | None, until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    from_ms, until_ms = (None if text is None else parse_time_ms(text, now_ms) for text in (from_, until))
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise usage_error("--from is not before --until: nothing is between them")
    return from_ms, until_ms


def _selection(
    topics: Sequence[str],
    times: tuple[int | None, int | None],
    offsets: Sequence[str],
    partitions: Sequence[int],
    key: str | None,
    key_regex: str | None,
    headers: Sequence[str],
) -> "Selection":
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.replay.selection import Selection, offset_range

    try:
        ranges = tuple(offset_range(text) for text in offsets)
    except PipelineError as error:
        raise usage_error(str(error)) from None
    named = (text.partition("=") for text in headers)
    wanted = tuple((name, value if sign else None) for name, sign, value in named)
    return Selection(tuple(topics), *times, ranges, tuple(dict.fromkeys(partitions)), key, key_regex, wanted)


def _groups(wanted: Sequence[str], prefix: str) -> tuple[str, ...]:
    from kbroker.pipeline.replay.groups import ALL

    if prefix and not wanted:
        raise usage_error("--group-prefix is for --restore-groups")
    return (ALL,) if ALL_GROUPS in wanted else tuple(wanted)


def _check_codec(name: str) -> None:
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.replay.run import codec

    try:
        codec(name)
    except PipelineError as error:
        raise usage_error(str(error)) from None


def _look_first(directory: str, topics: Sequence[str], bootstrap: str) -> None:
    """What is wrong without Spark is told before it is started, which takes seconds."""

    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.kafka import reachable
    from kbroker.pipeline.replay.draft import check_topics
    from kbroker.pipeline.spark.installed import require_spark
    from kbroker.pipeline.storage.location import open_storage

    require_spark(os.environ)
    if "://" not in directory:
        check_topics(Archive.open(open_storage(directory)), topics)
    reachable(bootstrap)


@contextmanager
def _world(
    session: Any, directory: str, bootstrap: str, patience_s: float
) -> "Iterator[tuple[World, Callable[[Plan], Any]]]":
    """The world of a replay, and its progress bar once there is a plan."""
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.replay.connection import Brokers
    from kbroker.pipeline.replay.draft import World
    from kbroker.pipeline.storage.location import open_storage

    bars: list[tuple[ProgressBar, list[int]]] = []

    def progress(done: int, total: int) -> None:
        for bar, seen in bars:
            bar.advance(done - seen[0])
            seen[0] = done

    @contextmanager
    def work(plan: "Plan") -> Iterator[None]:
        with ProgressBar("replaying", plan.rows) as bar:
            bars.append((bar, [0]))
            yield
            bars.clear()

    with Brokers(bootstrap) as brokers:
        archive = Archive.open(open_storage(directory, session))
        yield World(session, archive, brokers, bootstrap, print_note, progress, patience_s), work


def _plan(
    world: "World", request: "Request | None", resume: str | None, new: bool, configs: Mapping[str, str], quiet: bool
) -> "Plan":
    from kbroker.pipeline.replay import plan
    from kbroker.pipeline.replay.draft import drafted
    from kbroker.pipeline.replay.run import begin, cluster_of

    if request is None:
        return plan.load(world.archive.storage, resume or "")
    found = None if new else plan.unfinished(world.archive.storage, request, cluster_of(world))
    if found is not None:
        print_note(
            f"going on with replay {found.id}, which the same command began and left unfinished (--new begins another)"
        )
        return found
    draft = drafted(world, request, configs)
    for warning in draft.warnings:
        print_note(f"note: {warning}")
    made = begin(world, draft, new)
    if not quiet:
        print_note(
            f"replay {made.id}: {count_text(made.rows, 'record')} "
            f"(kbroker replay DIR --resume {made.id} goes on with it)"
        )
    return made


def _sent(world: "World", plan: "Plan", limit: "Limit") -> "Summary":
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.replay.run import go_on
    from kbroker.pipeline.spark.explain import explain, is_sparks

    try:
        return go_on(world, plan, limit)
    except Exception as error:
        if not (isinstance(error, PipelineError) or is_sparks(error)):
            raise
        detail = str(error) if isinstance(error, PipelineError) else explain(error)
        raise PipelineError(f"{detail.rstrip('.')} (go on with: --resume {plan.id})") from error
