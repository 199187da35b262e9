"""Options of the commands that run on Spark, and its session as they use it: failures leave as CliError."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.errors import CliError, usage
from kbroker.cli.common.output import note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs, as spark-submit has it.", show_default="local[*]"),
]
Jars = Annotated[
    str | None,
    typer.Option(
        "--spark-jars",
        metavar="DIR",
        envvar="KBROKER_SPARK_JARS",
        help="A directory with Spark's Kafka connector, as `kbroker pipeline fetch` makes it.",
        show_default="fetched once",
    ),
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="One of Spark's settings, several times."),
]

BrokerWait = Annotated[
    str, typer.Option("--broker-wait", metavar="DURATION", help="How long to wait for a broker that has gone.")
]


@contextmanager
def spark(
    name: str, master: str | None, jars: str | None, conf: Sequence[str] | None, *, prints: bool = False
) -> "Iterator[SparkSession]":
    """A session for one command. What Spark or the pipeline raises within leaves as a CliError of one sentence."""
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.spark.session import spark_session
    from kbroker.pipeline.spark.settings import parse_conf

    with pipeline_errors():
        try:
            settings = parse_conf(conf or [])
        except PipelineError as error:
            raise usage(str(error)) from None
        with spark_session(name, master=master, jars=jars, conf=settings, note=note, prints=prints) as session:
            yield session


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Turns what the pipeline, Spark and py4j raise into a CliError."""
    from kbroker.pipeline.errors import PipelineError
    from kbroker.pipeline.spark.explain import explain, is_sparks

    try:
        yield
    except PipelineError as error:
        raise CliError(str(error)) from error
    except Exception as error:
        if not is_sparks(error):
            raise
        raise CliError(explain(error)) from error
