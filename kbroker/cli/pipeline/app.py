"""`kbroker pipeline`: Spark jobs with the Kafka connector, kbroker's and the user's."""

import json
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.decode_options import ValueFormatOptions, read_value_format
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    SparkConf,
    SparkOptions,
    argument,
    option,
    pipeline_errors,
    pipeline_usage_errors,
    spark_session_for,
)
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.stop_signals import StopSignals
from kbroker.cli.common.values import count_text, parse_duration_ms

if TYPE_CHECKING:
    from kbroker.pipeline.aggregate.definition import AggregateDefinition
    from kbroker.pipeline.aggregate.query import AggregateQuery, AggregateSummary, BatchReport, ResultSink, RunOptions

app = typer.Typer()


@app.command("run")
def run(
    file: Annotated[str, argument("FILE.py")],
    args: Annotated[list[str] | None, argument("[-- ARG]...")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    spark: SparkOptions,
) -> None:
    """Run a Python program in a Spark session with the Kafka connector.

    The session is the variable `spark`, and SparkSession.builder.getOrCreate() returns it. The bootstrap address is in
    the environment variable KBROKER_BOOTSTRAP and in the Spark property spark.kbroker.bootstrap; KBROKER_KAFKA_OPTIONS
    has the options of Spark's Kafka source and sink as JSON, without secrets. The exit status is that of the program.
    """
    from kbroker.pipeline.security import kafka_options

    if not os.path.isfile(file):
        raise CliError(f"{file} does not exist")
    os.environ["KBROKER_BOOTSTRAP"] = bootstrap
    with pipeline_errors():
        os.environ["KBROKER_KAFKA_OPTIONS"] = json.dumps(kafka_options(bootstrap))
    properties = [f"spark.kbroker.bootstrap={bootstrap}", *(spark.conf or [])]
    with spark_session_for(os.path.basename(file), spark._replace(conf=properties), prints=True) as session:
        status = run_file(file, args or [], session)
    raise typer.Exit(status)


@app.command("fetch")
def fetch(
    directory: Annotated[str | None, argument("[DIR]", show_default="the cache")] = None, conf: SparkConf = None
) -> None:
    """Download Spark's Kafka connector to the cache, or to a directory for --spark-jars on machines without network.

    To download from a mirror, add --conf spark.jars.ivySettings=FILE.
    """
    from pathlib import Path

    from kbroker.pipeline.spark.installation import (
        cache_directory,
        connector_jars,
        connector_version,
        fetch_connector,
        require_java,
        require_spark,
    )
    from kbroker.pipeline.spark.session_conf import parse_conf

    with pipeline_errors():
        ivy = parse_conf(conf or []).get("spark.jars.ivySettings")
        installed, java = require_spark(os.environ), require_java(os.environ)
        target = Path(directory) if directory is not None else cache_directory(os.environ, installed)
        print_note(f"downloading Spark's Kafka connector {connector_version(installed).spark}")
        fetch_connector(target, installed, java, os.environ, Path(ivy) if ivy else None)
        for jar in connector_jars(target, installed):
            print(jar)


def run_file(file: str, args: Sequence[str], session: Any) -> int:
    """Run the program and return its exit status. Prints the traceback of an exception, without kbroker's frames.

    Raises KeyboardInterrupt.
    """
    sys.argv = [file, *args]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    try:
        runpy.run_path(file, {"spark": session}, "__main__")
    except SystemExit as error:
        return _exit_status(error)
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _program_frames(error.__traceback__, file))
        return 1
    return 0


def _exit_status(error: SystemExit) -> int:
    """Return the exit status of an interpreter that ends with this error. Prints a message as the interpreter does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _program_frames(trace: TracebackType | None, file: str) -> TracebackType | None:
    """Return the traceback from the program's first frame; None if the program cannot be compiled."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


@app.command("aggregate")
def aggregate(
    topics: Annotated[list[str], argument("TOPIC", complete=complete_topics)],
    window: Annotated[str, option("DURATION", "Length of the windows.", show_default=False)],
    slide: Annotated[str | None, option("DURATION", "Distance of window starts.", show_default="--window")] = None,
    offset: Annotated[str, option("DURATION", "Shift all windows, which start at multiples of --slide in UTC.")] = "0s",
    key: Annotated[
        list[str] | None,
        option(
            "--key -k [NAME=]SOURCE",
            "Group by key, topic, partition, or a field of the value such as $.field; repeatable.",
        ),
    ] = None,
    value: Annotated[str, option("$.FIELD", "JSON field with the number to aggregate.")] = "",
    time: Annotated[
        str, option("record|$.FIELD", "Time of a record: its timestamp, or a JSON field of the value.")
    ] = "record",
    compute: Annotated[
        list[str] | None,
        option(
            "NAME,...",
            "Functions: count, bytes, values, sum, min, max, avg, and percentiles such as p50.",
            show_default="count,bytes, and with --value sum,min,max,avg",
        ),
    ] = None,
    approximate: Annotated[
        bool, option("--approximate", "Compute percentiles with a rank error of 0.01%, in less memory.")
    ] = False,
    watermark: Annotated[str, option("DURATION", "Keep windows open for late records this long.")] = "1h",
    max_ahead: Annotated[str, option("DURATION", "Skip records that are further in the future.")] = "1d",
    to_topic: Annotated[str, option("TOPIC", "Produce results to this topic.", complete=complete_topics)] = "",
    to_parquet: Annotated[str, option("DIR", "Write results as Parquet files to this path or URI.")] = "",
    checkpoint: Annotated[
        str,
        option(
            "DIR",
            "Directory of the checkpoint, from which a later run continues: a path or URI.",
            show_default="in the directory of --to-parquet",
        ),
    ] = "",
    once: Annotated[bool, option("--once", "Stop at the current end of the topics.")] = False,
    every: Annotated[str | None, option("DURATION", "Interval of batches without --once.", show_default="10s")] = None,
    from_: Annotated[str, option("--from earliest|latest", "Where a new aggregate starts.")] = "earliest",
    committed_only: Annotated[
        bool, option("--committed-only", "Skip records of open and aborted transactions.")
    ] = False,
    max_records: Annotated[
        int, option("--max-records-per-batch N", "Read at most N records in a batch; 0: no limit.", min=0)
    ] = 0,
    accept_loss: Annotated[
        bool, option("--accept-loss", "Continue if records were deleted before they were read.")
    ] = False,
    plot: Annotated[str, option("FILE.png", "Plot records and bytes over time at the end.")] = "",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    *,
    values: ValueFormatOptions,
    spark: SparkOptions,
) -> None:
    """Aggregate the records of topics by time window and key continuously, until Ctrl-C.

    Each batch updates the results that it changes: a topic gets a record whose key is the window and the group, and
    Parquet files get a row that replaces the earlier one. The next run continues from the checkpoint. Records that
    cannot be parsed or are too late are skipped and counted.

    Example: kbroker pipeline aggregate orders --window 1h --key key --to-parquet /data/hourly --once
    """
    from kbroker.pipeline.aggregate.definition import (
        AggregateDefinition,
        check_definition,
        default_compute,
        parse_group_key,
        split_names,
    )
    from kbroker.pipeline.aggregate.query import AggregateQuery, ResultSink, RunOptions, require_topics
    from kbroker.pipeline.aggregate.result_files import check_plot
    from kbroker.pipeline.aggregate.value_decoder import ValueDecoder

    if from_ not in ("earliest", "latest"):
        raise usage_error(f"--from must be earliest or latest, not {from_!r}")
    if once and every is not None:
        raise usage_error("specify either --once or --every")
    if bool(to_topic) == bool(to_parquet):
        raise usage_error("specify either --to-topic TOPIC or --to-parquet DIR")
    if to_topic and not checkpoint:
        raise usage_error("--to-topic requires --checkpoint DIR")
    window_ms = parse_duration_ms(window)
    with pipeline_usage_errors():
        definition = AggregateDefinition(
            topics=tuple(dict.fromkeys(topics)),
            window_ms=window_ms,
            slide_ms=window_ms if slide is None else parse_duration_ms(slide),
            offset_ms=parse_duration_ms(offset),
            keys=tuple(parse_group_key(text) for text in key or ()),
            value=value,
            time=time,
            compute=split_names(compute) if compute else default_compute(value),
            approximate=approximate,
            watermark_ms=parse_duration_ms(watermark),
            max_ahead_ms=parse_duration_ms(max_ahead),
            committed_only=committed_only,
            value_format=values.value_format,
        )
        check_definition(definition)
        if plot:
            check_plot(plot, definition)
    decoding = read_value_format(values)
    decoder = None if decoding is None else ValueDecoder(decoding, values.registry)
    options = RunOptions(once, parse_duration_ms(every or "10s"), from_ == "earliest", max_records, accept_loss)
    target = ResultSink(to_topic, to_parquet)
    with pipeline_errors():
        # Checked before Spark starts, which takes seconds.
        require_topics(bootstrap, definition, target)
    with spark_session_for("kbroker pipeline aggregate", spark) as session:
        query = AggregateQuery(session, bootstrap, definition, target, checkpoint, decoder)
        summary = _run(query, options)
        if as_json:
            print_json(_summary_json(summary))
        else:
            print(_summary_text(summary, definition, target))
        if plot:
            _plot(session, bootstrap, definition, target, plot)


def _run(query: "AggregateQuery", options: "RunOptions") -> "AggregateSummary":
    for note in query.notes:
        print_note(note)
    stop = threading.Event()

    def on_signal(count: int) -> None:
        """Stop after the current batch; at the second signal, immediately."""
        if count > 1:
            raise KeyboardInterrupt
        stop.set()

    with StopSignals(on_signal):
        return query.run(options, lambda batch: _print_batch(batch, once=options.once), stop)


def _print_batch(batch: "BatchReport", *, once: bool) -> None:
    """Print what a batch skipped, and the progress of a continuous run."""
    skipped = _skipped_text(batch.problems, batch.late)
    if skipped:
        print_note(f"batch {batch.number}: skipped {skipped}")
    if not once and batch.records:
        print_note(
            f"batch {batch.number}: {count_text(batch.records, 'record')} in {batch.milliseconds / 1000:.1f} s, "
            f"{count_text(batch.updated, 'row')} changed"
        )


def _skipped_text(problems: Mapping[str, int], late: int) -> str:
    from kbroker.pipeline.aggregate.definition import PROBLEMS

    parts = [f"{count_text(count, 'record')} {PROBLEMS[name]}" for name, count in problems.items() if count]
    if late:
        parts.append(f"{count_text(late, 'record')} that came after the window was closed (--watermark)")
    return ", ".join(parts)


def _summary_text(summary: "AggregateSummary", definition: "AggregateDefinition", target: "ResultSink") -> str:
    target_name = target.topic or target.directory
    skipped = _skipped_text(summary.problems, summary.late)
    batches = count_text(summary.batches, "batch", "batches")
    return (
        f"{count_text(summary.records, 'record')} of {', '.join(definition.topics)} in {batches}: "
        f"{count_text(summary.updated, 'row')} of {target_name} changed" + (f"; skipped {skipped}" if skipped else "")
    )


def _summary_json(summary: "AggregateSummary") -> dict[str, Any]:
    closed = datetime.fromtimestamp(summary.watermark_ms / 1000, UTC).isoformat() if summary.watermark_ms else None
    return {
        "batches": summary.batches,
        "records": summary.records,
        "rows_changed": summary.updated,
        "left_out": {**summary.problems, "late": summary.late},
        "windows_closed_until": closed,
    }


def _plot(session: Any, bootstrap: str, definition: "AggregateDefinition", target: "ResultSink", path: str) -> None:
    from kbroker.archive.storage import open_storage
    from kbroker.pipeline.aggregate import result_files

    if target.topic:
        results = result_files.read_topic_results(session, bootstrap, target.topic, definition)
    else:
        results = result_files.read_results(session, open_storage(target.directory))
    result_files.draw_results(path, definition, result_files.labeled_rows(definition, results))
    print_note(f"plotted to {path}")


@app.command("template")
def template(
    file: Annotated[str | None, argument("[FILE]", "File to create.", show_default="standard output")] = None,
) -> None:
    """Print an example job to modify, or write it to a file. `kbroker pipeline run` can run it unchanged."""
    from kbroker.pipeline.spark.job_template import JOB_TEMPLATE

    if file is None:
        print(JOB_TEMPLATE, end="")
        return
    try:
        with open(file, "x", encoding="utf-8") as out:
            out.write(JOB_TEMPLATE)
    except FileExistsError:
        raise CliError(f"{file} already exists") from None
