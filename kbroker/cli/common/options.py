"""Options of several commands: of all, of those that make plans of moves, and of those that run on Spark."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.output import print_note
from kbroker.cli.common.values import INT32, parse_rate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kbroker.pipeline.storage.storage import Storage


def option(
    spec: str = "", help: str | None = None, *, complete: Callable[..., list[str]] | None = None, **settings: Any
) -> Any:
    """Declare an option for typer. `spec`: its names, then its metavar: "--group -g GROUP".

    A `max` without `min` implies that numbers are not negative.
    """
    words = spec.split()
    names = [word for word in words if word.startswith("-")]
    if "max" in settings:
        settings.setdefault("min", 0)
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=help, autocompletion=complete, **settings)


def argument(
    metavar: str = "", help: str | None = None, *, complete: Callable[..., list[str]] | None = None, **settings: Any
) -> Any:
    """Declare an argument for typer; like `option`. Its default is shown only on request."""
    settings = {"show_default": False, **settings}
    if "max" in settings:
        settings.setdefault("min", 0)
    return typer.Argument(metavar=metavar or None, help=help, autocompletion=complete, **settings)


DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

Bootstrap = Annotated[
    str, option("--bootstrap -b HOST:PORT,...", "One or more brokers of the cluster.", envvar="KBROKER_BOOTSTRAP")
]
AsJson = Annotated[bool, option("--json", "Print JSON.")]
Yes = Annotated[bool, option("--yes -y", "Do not ask for confirmation.")]

# Of commands that make a plan of moves and let the controller run it: see plan_options.py.
DryRun = Annotated[bool, option("--dry-run", "Show the plan, and do not run it.")]
Throttle = Annotated[
    str | None,
    option(
        "--throttle RATE",
        "Maximum bytes per second that each broker sends and receives for the plan, such as 20MiB.",
        show_default="no throttle",
    ),
]
Concurrent = Annotated[
    int | None, option("--concurrent N", "Partitions that move at the same time.", min=1, max=INT32, show_default="10")
]
AllowFewerRacks = Annotated[
    bool, option("--allow-fewer-racks", "Allow partitions to be spread over fewer racks than before.")
]
Detach = Annotated[bool, option("--detach", "Return as soon as the plan has begun.")]


DEFAULT_CONCURRENT = 10


class PlanOptions(NamedTuple):
    """How to show and run a plan. `throttle`: bytes per second, None for no throttle. `concurrent`: None for 10."""

    dry_run: bool = False
    throttle: int | None = None
    concurrent: int | None = None
    detach: bool = False
    yes: bool = False
    as_json: bool = False

    @property
    def max_concurrent_moves(self) -> int:
        return DEFAULT_CONCURRENT if self.concurrent is None else self.concurrent

    @property
    def used(self) -> list[str]:
        """The names of the options that the command line has."""
        changed = [name for name in self._fields if getattr(self, name) != getattr(NO_PLAN_OPTIONS, name)]
        return ["--" + name.removeprefix("as_").replace("_", "-") for name in changed]


NO_PLAN_OPTIONS = PlanOptions()

_ANNOTATIONS: dict[str, Any] = {
    "dry_run": DryRun,
    "throttle": Throttle,
    "concurrent": Concurrent,
    "detach": Detach,
    "yes": Yes,
    "as_json": AsJson,
}


def with_plan_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that has a parameter `options: PlanOptions`: it gets one option for each field instead.

    The command raises CliError for a rate that cannot be parsed.
    """

    @wraps(command)
    def command_with_options(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in _ANNOTATIONS}
        if values["throttle"] is not None:
            values["throttle"] = parse_rate(values["throttle"])
        command(**arguments, options=PlanOptions(**values))

    signature = inspect.signature(command)
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = [
        inspect.Parameter(name, keyword, default=getattr(NO_PLAN_OPTIONS, name), annotation=annotation)
        for name, annotation in _ANNOTATIONS.items()
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "options":
            parameters += fields
        else:
            parameters.append(parameter.replace(kind=keyword))
    command_with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command_with_options.__annotations__ = {**command.__annotations__, **_ANNOTATIONS}
    del command_with_options.__annotations__["options"]
    return command_with_options


Master = Annotated[str | None, option("--master URL", "Spark master, as for spark-submit.", show_default="local[*]")]
Jars = Annotated[
    str | None,
    option(
        "--spark-jars DIR",
        "Directory with Spark's Kafka connector, made by `kbroker pipeline fetch`.",
        envvar="KBROKER_SPARK_JARS",
        show_default="downloaded once",
    ),
]
SparkConf = Annotated[list[str] | None, option("--conf NAME=VALUE", "Set a Spark property; repeatable.")]
Directory = Annotated[str, argument("DIR")]
TopicNames = Annotated[list[str] | None, option("--topic TOPIC", "Include this topic only; repeatable.")]
BrokerWait = Annotated[str, option("--broker-wait DURATION", "Wait this long for a broker that cannot be reached.")]


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
def open_storages(
    directories: Sequence[str], master: str | None, jars: str | None, conf: Sequence[str] | None
) -> "Iterator[Callable[[str], Storage]]":
    """Return a function that opens storages. Starts a Spark session only if a directory is not local."""
    from kbroker.pipeline.storage.location import is_local, open_storage

    if all(map(is_local, directories)):
        with pipeline_errors():
            yield open_storage
    else:
        with spark_session_for("kbroker archive", master, jars, conf) as session:
            yield lambda directory: open_storage(directory, session)


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
