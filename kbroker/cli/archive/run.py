"""`kbroker archive run`: topics into an archive, each record once, until it is asked to end or is done (--once)."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.parsing import INT64, parse_duration_ms, parse_time_ms
from kbroker.cli.common.spark_options import BrokerWait, Jars, Master, SparkConf, pipeline_errors, spark_session_for
from kbroker.cli.common.stop_signals import StopSignals

if TYPE_CHECKING:
    from kbroker.pipeline.archive.ingest.batch import Summary
    from kbroker.pipeline.archive.ingest.brokers import Stop
    from kbroker.pipeline.archive.ingest.run import Options, Origin

Directory = Annotated[
    str, typer.Argument(metavar="DIR", show_default=False, help="A path or URI; made where there is none.")
]
Topics = Annotated[
    list[str] | None, typer.Argument(metavar="[TOPIC]...", show_default=False, autocompletion=complete_topics)
]


def run(
    directory: Directory,
    topics: Topics = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="All topics whose whole names match, those to come included."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Archive what there is now, and end.")] = False,
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often there is a batch.")] = "10s",
    committed_only: Annotated[
        bool,
        typer.Option("--committed-only", help="Without what is open or aborted; for the whole life of an archive."),
    ] = False,
    origin: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Where new topics begin: earliest, latest, a time or how long ago."
        ),
    ] = "earliest",
    most_records: Annotated[
        int, typer.Option("--max-records-per-batch", metavar="RECORDS", min=1, max=INT64)
    ] = 2_000_000,
    rate: Annotated[
        float | None, typer.Option(metavar="RECORDS", help="At most so many a second.", show_default="no limit")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where Spark notes its batches.", show_default="DIR/_checkpoint"),
    ] = None,
    broker_wait: BrokerWait = "5m",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell of each batch, as on a terminal.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Archive topics to Parquet, each record exactly once, whatever is killed meanwhile.

    SIGTERM and Ctrl-C end it after the batch that runs, a second one at once; it goes on where it was.
    """
    from kbroker.pipeline.archive.ingest.brokers import Stop
    from kbroker.pipeline.archive.ingest.run import Options
    from kbroker.pipeline.archive.ingest.subscription import subscription
    from kbroker.pipeline.errors import PipelineError

    try:
        wanted = subscription(topics or [], pattern)
    except PipelineError as error:
        raise usage_error(str(error)) from None
    options = Options(
        bootstrap=bootstrap,
        subscription=wanted,
        committed_only=committed_only,
        once=once,
        every_s=parse_duration_ms(every) / 1000,
        most_records=most_records,
        rate=_rate(rate),
        origin=_origin(origin),
        broker_wait_s=parse_duration_ms(broker_wait) / 1000,
    )
    with pipeline_errors():
        _require_broker(options)
    started = time.monotonic()
    stop = Stop()
    with (
        StopSignals(lambda _: stop.ask()) as signals,
        spark_session_for("kbroker archive", master, jars, conf) as session,
    ):
        signals.install()  # the Spark session has replaced the handlers
        summary, number = _run(session, directory, checkpoint, options, stop, verbose or sys.stderr.isatty())
    _tell(directory, summary, number, time.monotonic() - started, as_json)


def _run(
    session: Any, directory: str, checkpoint: str | None, options: "Options", stop: "Stop", verbose: bool
) -> "tuple[Summary, int]":
    """What was archived, and the number of the archive's last commit."""
    from kbroker.pipeline.archive.ingest.batch import Tell
    from kbroker.pipeline.archive.ingest.run import archive_topics
    from kbroker.pipeline.storage.location import open_storage

    storage = open_storage(directory, session)
    place = open_storage(checkpoint, session) if checkpoint else None
    tell = Tell(progress=print_note if verbose else lambda _: None, warn=print_error)
    return archive_topics(session, storage, options, stop, tell, place)


def _require_broker(options: "Options") -> None:
    """Before Spark takes its seconds to start: whether somebody listens, and has the topics that are named."""
    from kbroker.pipeline.kafka import Cluster

    with Cluster(options.bootstrap) as cluster:
        cluster.require_topics(options.subscription.topics)


def _rate(rate: float | None) -> float | None:
    if rate is not None and not rate > 0:
        raise usage_error(f"--rate must be more than nothing, not {rate:g}")
    return rate


def _origin(text: str) -> "Origin":
    from kbroker.pipeline.archive.ingest.run import Origin

    if text == "earliest":
        return Origin("earliest")
    if text == "latest":
        return Origin("latest")
    return Origin("time", parse_time_ms(text.removeprefix("@"), round(time.time() * 1000)))


def _tell(directory: str, summary: "Summary", number: int, seconds: float, as_json: bool) -> None:
    records = sum(summary.records.values())
    if as_json:
        print_json(
            {
                "archive": directory,
                "commit": number,
                "batches": summary.batches,
                "records": records,
                "bytes": summary.data,
                "files": summary.files,
                "file_bytes": summary.size,
                "seconds": round(seconds, 3),
                "topics": dict(sorted(summary.records.items())),
                "gaps": [gap._asdict() for gap in summary.gaps],
            }
        )
        return
    print(
        f"archived {records:,} {'record' if records == 1 else 'records'} "
        f"of {count_text(len(summary.records), 'topic')} in {count_text(summary.batches, 'batch', 'batches')}, "
        f"{count_text(summary.files, 'file')} of {summary.size:,} bytes, to {directory}"
    )
