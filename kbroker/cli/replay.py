"""`kbroker replay`: records of an archive back into topics, each once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.client import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.complete import complete_groups
from kbroker.cli.errors import usage
from kbroker.cli.output import LongWork, counted, heading, note, print_json, print_table, size_text
from kbroker.cli.spark_options import Jars, Master, SparkConf, pipeline_errors, spark
from kbroker.cli.values import INT32, assignments, clock_time, duration_ms, moment_ms

if TYPE_CHECKING:
    from kbroker.pipeline.replay.encoding import Target
    from kbroker.pipeline.replay.groups import Placed
    from kbroker.pipeline.replay.job import Limit
    from kbroker.pipeline.replay.plan import Plan, Request
    from kbroker.pipeline.replay.run import Draft, Summary, World

ALL_GROUPS = "all"


def replay(
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
    broker_wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for a broker that has gone.")
    ] = "2m",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Replay archived records into topics: with their keys, values, headers, timestamps and partitions, each once.

    After a kill or a failure the same command, or --resume, goes on where it was; nothing comes twice.
    """
    limit = _limit(rate, speed)
    patience_s = duration_ms(broker_wait) / 1000
    request = None
    if resume is None:
        request = _request(locals())
    elif topics or dry_run or new:
        raise usage("--resume says all of what is replayed: it goes with neither TOPIC, --dry-run nor --new")
    configs = assignments(config or [])
    with pipeline_errors():
        _look_first(directory, topics or [], bootstrap)
    with (
        spark("kbroker replay", master, jars, conf) as session,
        _world(session, directory, bootstrap, patience_s) as (
            world,
            work,
        ),
    ):
        if dry_run:
            assert request is not None
            _show(world, request, configs, as_json)
            return
        plan = _plan(world, request, resume, new, configs, quiet=as_json)
        with work(plan):
            summary = _sent(world, plan, limit)
    _tell(summary, as_json)


def _limit(rate: float | None, speed: float | None) -> "Limit":
    from kbroker.pipeline.replay.job import Limit

    if rate is not None and speed is not None:
        raise usage("--rate and --speed say different things: give one of them")
    for name, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < float("inf"):
            raise usage(f"{name} must be more than 0")
    return Limit(rate, speed)


def _request(options: Mapping[str, Any]) -> "Request":
    from kbroker.pipeline.replay import groups
    from kbroker.pipeline.replay.plan import Request
    from kbroker.pipeline.replay.routing import target_names
    from kbroker.pipeline.replay.run import codec

    topics = tuple(dict.fromkeys(options["topics"] or ()))
    if not topics:
        raise usage("name the TOPICs to replay")
    if options["to"] is not None and options["prefix"] is not None:
        raise usage("--to and --prefix both name the target: give one of them")
    if options["partitions_by"] not in ("partition", "key"):
        raise usage(f"--partitions-by must be partition or key, not {options['partitions_by']!r}")
    wanted = options["restore_groups"] or []
    if options["group_prefix"] and not wanted:
        raise usage("--group-prefix is for --restore-groups")
    with pipeline_errors():
        codec(options["compression"])
    return Request(
        _selection(options, topics),
        target_names(topics, options["to"], options["prefix"]),
        by_key=options["partitions_by"] == "key",
        origin_headers=options["origin_headers"],
        append=options["append"],
        compression=options["compression"],
        groups=(groups.ALL,) if ALL_GROUPS in wanted else tuple(wanted),
        group_prefix=options["group_prefix"],
    )


def _selection(options: Mapping[str, Any], topics: tuple[str, ...]) -> Any:
    import time

    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.replay.selection import Selection, offset_range

    now_ms = time.time_ns() // 1_000_000
    try:
        ranges = tuple(offset_range(text) for text in options["offsets"] or ())
    except PipelineError as error:
        raise usage(str(error)) from None
    from_ms, until_ms = (
        None if text is None else moment_ms(text, now_ms) for text in (options["from_"], options["until"])
    )
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise usage("--from is not before --until: nothing is between them")
    named = (text.partition("=") for text in options["header"] or ())
    return Selection(
        topics,
        from_ms,
        until_ms,
        ranges,
        tuple(dict.fromkeys(options["partition"] or ())),
        options["key"],
        options["key_regex"],
        tuple((name, value if sign else None) for name, sign, value in named),
    )


def _look_first(directory: str, topics: Sequence[str], bootstrap: str) -> None:
    """What is wrong without Spark is told before it is started, which takes seconds."""
    import os

    from kbroker.pipeline.archive.store import Archive
    from kbroker.pipeline.installed import require_spark
    from kbroker.pipeline.kafka import reachable
    from kbroker.pipeline.local_storage import LocalStorage
    from kbroker.pipeline.replay.run import check_topics
    from kbroker.pipeline.storage import open_storage

    require_spark(os.environ)
    if "://" not in directory:
        storage = open_storage(directory)
        assert isinstance(storage, LocalStorage)
        check_topics(Archive.open(storage), topics)
    reachable(bootstrap)


@contextmanager
def _world(
    session: Any, directory: str, bootstrap: str, patience_s: float
) -> "Iterator[tuple[World, Callable[[Plan], Any]]]":
    """The world of a replay, and its progress bar once there is a plan."""
    from kbroker.pipeline.archive.store import Archive
    from kbroker.pipeline.replay.connection import Brokers
    from kbroker.pipeline.replay.run import World
    from kbroker.pipeline.storage import open_storage

    bars: list[tuple[LongWork, list[int]]] = []

    def progress(done: int, total: int) -> None:
        for bar, seen in bars:
            bar.advance(done - seen[0])
            seen[0] = done

    @contextmanager
    def work(plan: "Plan") -> Iterator[None]:
        with LongWork("replaying", plan.rows) as bar:
            bars.append((bar, [0]))
            yield
            bars.clear()

    with Brokers(bootstrap) as brokers:
        archive = Archive.open(open_storage(directory, session))
        yield World(session, archive, brokers, bootstrap, note, progress, patience_s), work


def _plan(
    world: "World", request: "Request | None", resume: str | None, new: bool, configs: Mapping[str, str], quiet: bool
) -> "Plan":
    from kbroker.pipeline.replay import plan
    from kbroker.pipeline.replay.run import begin, cluster_of, drafted

    if request is None:
        return plan.load(world.archive.storage, resume or "")
    found = None if new else plan.unfinished(world.archive.storage, request, cluster_of(world))
    if found is not None:
        note(
            f"going on with replay {found.id}, which the same command began and left unfinished (--new begins another)"
        )
        return found
    draft = drafted(world, request, configs)
    for warning in draft.warnings:
        note(f"note: {warning}")
    made = begin(world, draft)
    if not quiet:
        note(
            f"replay {made.id}: {counted(made.rows, 'record')} (kbroker replay DIR --resume {made.id} goes on with it)"
        )
    return made


def _sent(world: "World", plan: "Plan", limit: "Limit") -> "Summary":
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.explain import explain, is_sparks
    from kbroker.pipeline.replay.run import go_on

    try:
        return go_on(world, plan, limit)
    except Exception as error:
        if not (isinstance(error, PipelineError) or is_sparks(error)):
            raise
        detail = str(error) if isinstance(error, PipelineError) else explain(error)
        raise PipelineError(f"{detail.rstrip('.')} (go on with: --resume {plan.id})") from error


def _show(world: "World", request: "Request", configs: Mapping[str, str], as_json: bool) -> None:
    """The dry run."""
    from kbroker.pipeline.replay.run import drafted

    draft = drafted(world, request, configs)
    places = draft.places(world)
    for warning in draft.warnings:
        note(f"note: {warning}")
    if as_json:
        print_json(_draft_json(draft, places))
        return
    rows = sum(amount.rows for amount in draft.amounts.values())
    size = sum(amount.size for amount in draft.amounts.values())
    heading("would replay", f"{counted(rows, 'record')}, {size_text(size)}")
    columns = ("topic", "partition", "records", "size", "first", "last", "at offset")
    print_table(
        columns,
        [
            [
                *target,
                amount.rows,
                size_text(amount.size),
                clock_time(amount.from_ms),
                clock_time(amount.to_ms),
                _start(draft, target),
            ]
            for target, amount in draft.amounts.items()
        ],
    )
    for name, wanted in draft.wanted.items():
        texts = "".join(f" {key}={value}" for key, value in sorted(wanted.configs.items()))
        note(f"would create topic {name} with {counted(wanted.partitions, 'partition')}{texts}")
    if places:
        heading("groups", "where they would stand")
        named = [
            (request.group_prefix + one.group, *one.target, _start(draft, one.target) + one.position) for one in places
        ]
        print_table(("group", "topic", "partition", "offset"), named)
    note("a dry run: nothing was created or sent")


def _start(draft: "Draft", target: "Target") -> int:
    found = draft.starts.get(target)
    return 0 if found is None else found.offset


def _draft_json(draft: "Draft", places: "Sequence[Placed]") -> dict[str, Any]:
    return {
        "dry_run": True,
        "records": sum(amount.rows for amount in draft.amounts.values()),
        "targets": [
            {
                "topic": target.topic,
                "partition": target.partition,
                "records": amount.rows,
                "bytes": amount.size,
                "from_ms": amount.from_ms,
                "to_ms": amount.to_ms,
                "offset": _start(draft, target),
            }
            for target, amount in draft.amounts.items()
        ],
        "creates": {name: {"partitions": one.partitions, "configs": one.configs} for name, one in draft.wanted.items()},
        "groups": [
            {
                "group": draft.request.group_prefix + one.group,
                "topic": one.target.topic,
                "partition": one.target.partition,
                "offset": _start(draft, one.target) + one.position,
            }
            for one in places
        ],
        "warnings": list(draft.warnings),
    }


def _tell(summary: "Summary", as_json: bool) -> None:
    plan, seconds = summary.plan, max(summary.seconds, 1e-9)
    if not as_json:
        rest = summary.rows - summary.sent
        before = f" ({rest} were there already)" if rest else ""
        speed = f", {summary.sent / seconds:.0f} records/s" if summary.sent else ""
        print(f"replay {plan.id}: {counted(summary.sent, 'record')} in {seconds:.1f} s{speed}{before}")
        for group, offsets in summary.groups.items():
            places = ", ".join(f"{topic}-{partition}: {at}" for (topic, partition), at in offsets.items())
            print(f"group {group}: {places}")
        return
    groups = [
        {"group": group, "topic": topic, "partition": partition, "offset": at}
        for group, offsets in summary.groups.items()
        for (topic, partition), at in offsets.items()
    ]
    starts = plan.starts()
    print_json(
        {
            "replay": plan.id,
            "records": summary.rows,
            "sent": summary.sent,
            "seconds": round(summary.seconds, 3),
            "targets": [
                {"topic": one.topic, "partition": one.partition, "records": count, "offset": starts[one].offset}
                for one, count in plan.counts().items()
            ],
            "groups": groups,
        }
    )
