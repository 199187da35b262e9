"""`kbroker archive run`: archive topics as tables."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.decode_options import DecodeOptions, read_decode_options
from kbroker.cli.common.errors import print_error, usage_error
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
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.stop_signals import StopSignals
from kbroker.cli.common.values import INT64, count_text, parse_duration_ms, parse_host_port, parse_size, parse_time_ms

if TYPE_CHECKING:
    from kbroker.pipeline.ingest.options import IngestSummary, StartPosition

MIN_FILE_BYTES, MAX_FILE_BYTES = 64 << 10, 1 << 30

Directory = Annotated[
    str, argument("DIR", "A directory, s3://BUCKET/PREFIX or catalog:NAME/NAMESPACE; created if it is absent.")
]
Topics = Annotated[list[str] | None, argument("[TOPIC]...", complete=complete_topics)]


def run(
    directory: Directory,
    topics: Topics = None,
    pattern: Annotated[
        str | None, option("REGEX", "Archive all topics whose name matches, including ones created later.")
    ] = None,
    once: Annotated[bool, option("--once", "Stop when the records that exist now are archived.")] = False,
    every: Annotated[str, option("DURATION", "Commit a batch at this interval.")] = "10s",
    committed_only: Annotated[
        bool | None,
        option(
            "--committed-only/--all-records",
            "Without or with records of open and aborted transactions; fixed when DIR is created.",
            show_default="--committed-only",
        ),
    ] = None,
    start: Annotated[
        str, option("--from POSITION", "Start new topics at earliest, latest, a time, or a duration ago.")
    ] = "earliest",
    max_records: Annotated[
        int, option("--max-records-per-batch RECORDS", "Commit at most RECORDS in a batch.", min=1, max=INT64)
    ] = 2_000_000,
    rate: Annotated[
        float | None, option("RECORDS", "Archive at most RECORDS per second.", show_default="no limit")
    ] = None,
    partition_by: Annotated[
        str | None,
        option(
            "day|hour", "Divide files by day or hour of the timestamps; fixed when DIR is created.", show_default="day"
        ),
    ] = None,
    catalog: Annotated[
        str, option("sqlite|directory", "Where a new local archive has its catalogue; fixed when DIR is created.")
    ] = "sqlite",
    file_size: Annotated[str, option("SIZE", "Begin another file at this size, before compression.")] = "128MiB",
    keep: Annotated[
        str | None, option("DURATION", "Delete days that are older than this from the archive.", show_default="never")
    ] = None,
    metrics: Annotated[str | None, option("HOST:PORT", "Serve Prometheus metrics on this address.")] = None,
    broker_wait: BrokerWait = "5m",
    verbose: Annotated[bool, option("--verbose -v", "Print a line per batch, even without a terminal.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    decode: DecodeOptions,
    spark: SparkOptions,
) -> None:
    """Archive topics as Apache Iceberg tables, each record exactly once, even if a process is killed.

    Run it again to continue. SIGTERM or Ctrl-C stops it after the current batch, a second one immediately.

    Example: kbroker archive run /data/archive orders payments --once
    """
    from kbroker.pipeline.cluster_admin import ClusterAdmin
    from kbroker.pipeline.ingest.cluster_retry import StopEvent
    from kbroker.pipeline.ingest.options import IngestOptions, Reporter, create_subscription
    from kbroker.pipeline.ingest.run import archive_topics

    with pipeline_usage_errors():
        subscription = create_subscription(topics or [], pattern)
    if rate is not None and not rate > 0:
        raise usage_error(f"--rate must be positive, not {rate:g}")
    if partition_by not in (None, "day", "hour"):
        raise usage_error(f"--partition-by must be day or hour, not {partition_by}")
    if catalog not in ("sqlite", "directory"):
        raise usage_error(f"--catalog must be sqlite or directory, not {catalog}")
    options = IngestOptions(
        bootstrap=bootstrap,
        subscription=subscription,
        committed_only=committed_only,
        once=once,
        interval_s=parse_duration_ms(every) / 1000,
        max_batch_records=max_records,
        rate=rate,
        keep_ms=None if keep is None else parse_duration_ms(keep),
        start=_parse_start(start),
        broker_wait_s=parse_duration_ms(broker_wait) / 1000,
        period=partition_by,
        catalog=catalog,
        max_file_bytes=_parse_file_size(file_size),
        metrics=None if metrics is None else parse_host_port(metrics, "--metrics"),
        decode=read_decode_options(decode),
        registry_url=decode.registry,
    )
    # Raises before Spark starts, which takes seconds, if no broker responds or a named topic does not exist.
    with pipeline_errors(), ClusterAdmin(options.bootstrap) as cluster:
        cluster.require_topics(options.subscription.topics)
    start_s = time.monotonic()
    stop = StopEvent()
    with StopSignals(lambda _: stop.set()) as signals, spark_session_for("kbroker archive", spark) as session:
        signals.install()  # the Spark session has replaced the handlers
        progress = print_note if verbose or sys.stderr.isatty() else lambda _: None
        reporter = Reporter(progress=progress, warn=print_error)
        summary = archive_topics(session, directory, options, stop, reporter)
    _print_summary(directory, summary, time.monotonic() - start_s, as_json)


def _parse_file_size(text: str) -> int:
    size = parse_size(text)
    if not MIN_FILE_BYTES <= size <= MAX_FILE_BYTES:
        raise usage_error(f"--file-size must be between 64KiB and 1GiB, not {text}")
    return size


def _parse_start(text: str) -> "StartPosition":
    from kbroker.pipeline.ingest.options import StartPosition

    if text == "earliest":
        return StartPosition("earliest")
    if text == "latest":
        return StartPosition("latest")
    return StartPosition("time", parse_time_ms(text.removeprefix("@"), round(time.time() * 1000)))


def _print_summary(directory: str, summary: "IngestSummary", seconds: float, as_json: bool) -> None:
    records = sum(summary.records.values())
    if as_json:
        print_json(
            {
                "archive": directory,
                "batches": summary.batches,
                "records": records,
                "bytes": summary.record_bytes,
                "files": summary.files,
                "file_bytes": summary.file_bytes,
                "seconds": round(seconds, 3),
                "topics": [{"topic": topic, "records": count} for topic, count in sorted(summary.records.items())],
                "dead_letters": [
                    {"topic": topic, "records": count} for topic, count in sorted(summary.dead_letters.items())
                ],
                "gaps": [{"topic": topic, **gap._asdict()} for topic, gaps in summary.gaps.items() for gap in gaps],
            }
        )
        return
    print(
        f"archived {records:,} {'record' if records == 1 else 'records'} "
        f"of {count_text(len(summary.records), 'topic')} in {count_text(summary.batches, 'batch', 'batches')}, "
        f"{count_text(summary.files, 'file')} of {summary.file_bytes:,} bytes, to {directory}"
    )
    for topic, count in sorted(summary.dead_letters.items()):
        print_note(
            f"{topic}: {count_text(count, 'record')} could not be decoded: SELECT * FROM dead_letters.{topic}, and "
            f"after the schema is mended: kbroker archive retry {directory} --topic {topic}"
        )
