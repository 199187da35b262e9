"""`kbroker pipeline`: Spark jobs with the Kafka connector, kbroker's and the user's."""

import os
from typing import Annotated

import typer

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from kbroker.cli.common.output import print_note
from kbroker.cli.common.spark_options import Jars, Master, SparkConf, pipeline_errors, spark_session_for
from kbroker.cli.pipeline.aggregate import aggregate, template

app = typer.Typer()


@app.command("run")
def run(
    file: Annotated[str, typer.Argument(metavar="FILE.py", show_default=False)],
    args: Annotated[list[str] | None, typer.Argument(metavar="[-- ARG]...", show_default=False)] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Run a Python program in a Spark session with the Kafka connector.

    The session is the variable `spark`, and SparkSession.builder.getOrCreate() returns it. The bootstrap address is in
    the environment variable KBROKER_BOOTSTRAP and in the Spark property spark.kbroker.bootstrap. The exit status is
    that of the program.
    """
    from kbroker.cli.pipeline.run_file import run_file

    if not os.path.isfile(file):
        raise CliError(f"{file} does not exist")
    os.environ["KBROKER_BOOTSTRAP"] = bootstrap
    properties = [f"spark.kbroker.bootstrap={bootstrap}", *(conf or [])]
    with spark_session_for(os.path.basename(file), master, jars, properties, prints=True) as session:
        status = run_file(file, args or [], session)
    raise typer.Exit(status)


@app.command("fetch")
def fetch(
    directory: Annotated[str | None, typer.Argument(metavar="[DIR]", show_default="the cache")] = None,
    conf: SparkConf = None,
) -> None:
    """Download Spark's Kafka connector to the cache, or to a directory for --spark-jars on machines without network.

    To download from a mirror, add --conf spark.jars.ivySettings=FILE.
    """
    from pathlib import Path

    from kbroker.pipeline.spark import connector
    from kbroker.pipeline.spark.installation import require_spark
    from kbroker.pipeline.spark.java import require_java
    from kbroker.pipeline.spark.session_conf import parse_conf

    with pipeline_errors():
        ivy = parse_conf(conf or []).get("spark.jars.ivySettings")
        installed, java = require_spark(os.environ), require_java(os.environ)
        target = Path(directory) if directory is not None else connector.cache_directory(os.environ)
        print_note(f"downloading Spark's Kafka connector {connector.VERSION}")
        connector.fetch_connector(target, installed, java, os.environ, Path(ivy) if ivy else None)
        for jar in connector.connector_jars(target, installed):
            print(jar)


app.command("aggregate")(aggregate)
app.command("template")(template)
