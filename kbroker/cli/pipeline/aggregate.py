"""`kbroker pipeline aggregate`: a live windowed aggregate of topics, into a topic or Parquet."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbroker.cli.common.completion import complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.parsing import parse_duration_ms
from kbroker.cli.common.spark_options import Jars, Master, SparkConf, pipeline_errors, spark_session_for
from kbroker.cli.common.stop_signals import StopSignals

if TYPE_CHECKING:
    from kbroker.pipeline.aggregate.definition import AggregateDefinition
    from kbroker.pipeline.aggregate.query import AggregateSummary, BatchReport, ResultSink, RunOptions


def aggregate(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics)],
    window: Annotated[str, typer.Option(metavar="DURATION", help="RunOptions long a window is.", show_default=False)],
    slide: Annotated[
        str | None, typer.Option(metavar="DURATION", help="A window so often.", show_default="one after the other")
    ] = None,
    offset: Annotated[
        str, typer.Option(metavar="DURATION", help="Windows begin so much after full multiples of it, in UTC.")
    ] = "0s",
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            "-k",
            metavar="[NAME=]WHAT",
            help="Group by key, topic, partition, or a field of the value as $.field; repeat for more.",
        ),
    ] = None,
    value: Annotated[
        str, typer.Option(metavar="$.FIELD", help="The number in the value that is summed and so on.")
    ] = "",
    time: Annotated[
        str,
        typer.Option(metavar="$.FIELD", help="When it happened: the record's own time, or a field of the value."),
    ] = "record",
    compute: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Of count, bytes, values, sum, min, max, avg, and percentiles as p50.",
            show_default="count,bytes, and with --value sum,min,max,avg",
        ),
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Percentiles right to 0.01% in rank, with less memory.")
    ] = False,
    watermark: Annotated[
        str, typer.Option(metavar="DURATION", help="RunOptions late a record may come and still be counted.")
    ] = "1h",
    max_ahead: Annotated[
        str, typer.Option(metavar="DURATION", help="Leave out records that are so far in the future.")
    ] = "1d",
    to_topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Results as records.", autocompletion=complete_topics)
    ] = "",
    to_parquet: Annotated[str, typer.Option(metavar="DIR", help="Results as Parquet, a path or URI.")] = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="What it goes on from, a path or URI.", show_default="of --to-parquet: in DIR"
        ),
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Up to where the topics end now.")] = False,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="Else so often.", show_default="10s")] = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where a new one begins: earliest or latest.")
    ] = "earliest",
    committed_only: Annotated[
        bool, typer.Option("--committed-only", help="Leave out records of open and aborted transactions.")
    ] = False,
    max_records: Annotated[int, typer.Option("--max-records-per-batch", min=0, help="0: as many as there are.")] = 0,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on where records were removed before they were read.")
    ] = False,
    plot: Annotated[str, typer.Option(metavar="FILE.png", help="At the end, draw records and bytes over time.")] = "",
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Aggregate records of topics by window and group, as they come, until Ctrl-C or with --once up to now.

    Each batch brings the rows that it changed up to date: to a topic as a record whose key is the window and the group,
    to Parquet in their place. It goes on from its checkpoint. What cannot be read, and what comes too late, is left out
    and told.
    """
    from kbroker.pipeline.aggregate.definition import default_compute, parse_group_key, split_names
    from kbroker.pipeline.aggregate.query import ResultSink, RunOptions, require_topics

    if from_ not in ("earliest", "latest"):
        raise usage_error(f"--from is earliest or latest, not {from_!r}")
    if once and every is not None:
        raise usage_error("--once does what there is now, and --every goes on: one of them")
    if bool(to_topic) == bool(to_parquet):
        raise usage_error("say where results go: --to-topic TOPIC or --to-parquet DIR")
    if to_topic and not checkpoint:
        raise usage_error("--to-topic needs --checkpoint DIR, which keeps what a later run goes on from")
    window_ms = parse_duration_ms(window)
    with _misuse():
        definition = _checked(
            plot,
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
        )
    how = RunOptions(once, parse_duration_ms(every or "10s"), from_ == "earliest", max_records, accept_loss)
    target = ResultSink(to_topic, to_parquet)
    with pipeline_errors():
        # Before Spark takes its seconds to start.
        require_topics(bootstrap, definition, target)
    with spark_session_for("kbroker pipeline aggregate", master, jars, conf) as session:
        summary = _run(session, bootstrap, definition, target, checkpoint, how)
        if as_json:
            print_json(_as_json(summary))
        else:
            print(_in_words(summary, definition, target))
        if plot:
            _plot(session, bootstrap, definition, target, plot)


@contextmanager
def _misuse() -> Iterator[None]:
    """What is wrong with a definition is wrong usage."""
    from kbroker.pipeline.errors import PipelineError

    try:
        yield
    except PipelineError as error:
        raise usage_error(str(error)) from None


def _checked(plot: str, **values: Any) -> "AggregateDefinition":
    from kbroker.pipeline.aggregate.definition import AggregateDefinition, check_definition
    from kbroker.pipeline.aggregate.result_plot import check_plot

    definition = check_definition(AggregateDefinition(**values))
    if plot:
        check_plot(plot, definition)
    return definition


def _run(
    session: Any,
    bootstrap: str,
    definition: "AggregateDefinition",
    target: "ResultSink",
    checkpoint: str,
    how: "RunOptions",
) -> "AggregateSummary":
    from kbroker.pipeline.aggregate.query import AggregateQuery

    aggregation = AggregateQuery(session, bootstrap, definition, target, checkpoint)
    for remark in aggregation.remarks:
        print_note(remark)
    stopping = threading.Event()
    with StopSignals(partial(_answer, stopping)):
        return aggregation.run(how, lambda batch: _tell(batch, once=how.once), stopping)


def _answer(stopping: threading.Event, asked: int) -> None:
    """The first signal ends it after the batch that runs, a later one at once."""
    if asked > 1:
        raise KeyboardInterrupt
    stopping.set()


def _tell(batch: "BatchReport", *, once: bool) -> None:
    """What a batch left out, always; of one that left out nothing only where it goes on for long."""
    left_out = _left_out(batch.problems, batch.late)
    if left_out:
        print_note(f"batch {batch.number}: left out {left_out}")
    if not once and batch.records:
        print_note(
            f"batch {batch.number}: {count_text(batch.records, 'record')} in {batch.milliseconds / 1000:.1f} s, "
            f"{count_text(batch.updated, 'row')} changed"
        )


def _left_out(problems: Mapping[str, int], late: int) -> str:
    from kbroker.pipeline.aggregate.sql import PROBLEMS

    parts = [f"{count_text(count, 'record')} {PROBLEMS[name]}" for name, count in problems.items() if count]
    if late:
        parts.append(f"{count_text(late, 'record')} that came after the window was closed (--watermark)")
    return ", ".join(parts)


def _in_words(summary: "AggregateSummary", definition: "AggregateDefinition", target: "ResultSink") -> str:
    where = target.topic or target.directory
    left_out = _left_out(summary.problems, summary.late)
    batches = count_text(summary.batches, "batch", "batches")
    return (
        f"{count_text(summary.records, 'record')} of {', '.join(definition.topics)} in {batches}: "
        f"{count_text(summary.updated, 'row')} of {where} changed" + (f"; left out {left_out}" if left_out else "")
    )


def _as_json(summary: "AggregateSummary") -> dict[str, Any]:
    closed = datetime.fromtimestamp(summary.watermark_ms / 1000, UTC).isoformat() if summary.watermark_ms else None
    return {
        "batches": summary.batches,
        "records": summary.records,
        "rows_changed": summary.updated,
        "left_out": {**summary.problems, "late": summary.late},
        "windows_closed_until": closed,
    }


def _plot(session: Any, bootstrap: str, definition: "AggregateDefinition", target: "ResultSink", path: str) -> None:
    from kbroker.pipeline.aggregate import result_plot as aggregate_plot
    from kbroker.pipeline.storage.location import open_storage

    if target.topic:
        results = aggregate_plot.read_topic_results(session, bootstrap, target.topic, definition)
    else:
        results = aggregate_plot.read_results(session, open_storage(target.directory, session))
    aggregate_plot.draw_results(path, definition, aggregate_plot.labeled_rows(definition, results))
    print_note(f"plot: {path}")


def template(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", show_default="standard output", help="Must not exist yet.")
    ] = None,
) -> None:
    """Print a small job of your own to start from, which `kbroker pipeline run` runs as it is."""
    from kbroker.pipeline.spark.job_template import JOB_TEMPLATE

    if file is None:
        print(JOB_TEMPLATE, end="")
        return
    try:
        with open(file, "x", encoding="utf-8") as out:
            out.write(JOB_TEMPLATE)
    except FileExistsError:
        raise CliError(f"{file}: is there already") from None
