"""`kbroker pipeline`: Spark jobs with the Kafka connector, kbroker's and the user's."""

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Annotated, Any

import typer

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Jars,
    Master,
    SparkConf,
    argument,
    pipeline_errors,
    spark_session_for,
)
from kbroker.cli.common.output import print_note
from kbroker.cli.pipeline.aggregate import aggregate, template

app = typer.Typer()


@app.command("run")
def run(
    file: Annotated[str, argument("FILE.py")],
    args: Annotated[list[str] | None, argument("[-- ARG]...")] = None,
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
    if not os.path.isfile(file):
        raise CliError(f"{file} does not exist")
    os.environ["KBROKER_BOOTSTRAP"] = bootstrap
    properties = [f"spark.kbroker.bootstrap={bootstrap}", *(conf or [])]
    with spark_session_for(os.path.basename(file), master, jars, properties, prints=True) as session:
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
        VERSION,
        cache_directory,
        connector_jars,
        fetch_connector,
        require_java,
        require_spark,
    )
    from kbroker.pipeline.spark.session_conf import parse_conf

    with pipeline_errors():
        ivy = parse_conf(conf or []).get("spark.jars.ivySettings")
        installed, java = require_spark(os.environ), require_java(os.environ)
        target = Path(directory) if directory is not None else cache_directory(os.environ)
        print_note(f"downloading Spark's Kafka connector {VERSION}")
        fetch_connector(target, installed, java, os.environ, Path(ivy) if ivy else None)
        for jar in connector_jars(target, installed):
            print(jar)


app.command("aggregate")(aggregate)
app.command("template")(template)


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
