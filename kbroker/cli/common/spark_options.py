"""Options of the commands that run on Spark, and their Spark session."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.output import print_note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master, as for spark-submit.", show_default="local[*]"),
]
Jars = Annotated[
    str | None,
    typer.Option(
        "--spark-jars",
        metavar="DIR",
        envvar="KBROKER_SPARK_JARS",
        help="Directory with Spark's Kafka connector, made by `kbroker pipeline fetch`.",
        show_default="downloaded once",
    ),
]
SparkConf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="Set a Spark property; repeatable.")
]
BrokerWait = Annotated[
    str,
    typer.Option("--broker-wait", metavar="DURATION", help="Wait this long for a broker that cannot be reached."),
]


@contextmanager
def spark_session_for(
    name: str, master: str | None, jars: str | None, conf: Sequence[str] | None, *, prints: bool = False
) -> "Iterator[SparkSession]":
    """Open a Spark session for one command. Errors of Spark and of the pipeline are raised as CliError."""
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.spark.session import spark_session
    from kbroker.pipeline.spark.session_conf import parse_conf

    with pipeline_errors():
        try:
            settings = parse_conf(conf or [])
        except PipelineError as error:
            raise usage_error(str(error)) from None
        with spark_session(name, master=master, jars=jars, conf=settings, note=print_note, prints=prints) as session:
            yield session


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Raise errors of the pipeline, Spark and py4j as CliError."""
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.spark.error_text import error_text, is_spark_error

    try:
        yield
    except PipelineError as error:
        raise CliError(str(error)) from error
    except Exception as error:
        if not is_spark_error(error):
            raise
        raise CliError(error_text(error)) from error
