"""Options of several commands: of all, of those that make plans of moves, and of those that run on Spark."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.output import print_note
from kbroker.cli.common.values import INT32, parse_rate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
DEFAULT_PORT = 9092
# A name, an IPv4 address, or an IPv6 address in brackets, without a port.
HOST = r"[^:\[\]\s]+|\[[^\]]+\]"


def _with_ports(bootstrap: str) -> str:
    """Append the default port to hosts without one."""
    servers = [server.strip() for server in bootstrap.split(",")]
    return ",".join(f"{server}:{DEFAULT_PORT}" if re.fullmatch(HOST, server) else server for server in servers)


Bootstrap = Annotated[
    str,
    option(
        "--bootstrap --bootstrap-server -b HOST[:PORT],...",
        f"One or more brokers of the cluster; the default port is {DEFAULT_PORT}.",
        envvar="KBROKER_BOOTSTRAP",
        callback=_with_ports,
    ),
]
CommandConfig = Annotated[
    str | None,
    option(
        "--command-config FILE",
        "Properties of Kafka's clients that say how to connect: security.protocol, sasl.*, ssl.*",
        envvar="KBROKER_COMMAND_CONFIG",
    ),
]
TlsCa = Annotated[
    str | None,
    option("--tls-ca FILE", "Use TLS, and trust the certificates in this PEM file. Without a file: --login."),
]
Login = Annotated[
    str | None,
    option(
        "--login USER",
        "Use TLS, and log in with SCRAM-SHA-512. The password is in KBROKER_PASSWORD, else it is asked for.",
    ),
]
KafkaProperties = Annotated[
    list[str] | None,
    option("--kafka NAME=VALUE", "Set a property of the Kafka clients that read and write records; repeatable."),
]
AsJson = Annotated[bool, option("--json", "Print JSON.")]
Yes = Annotated[bool, option("--yes -y", "Do not ask for confirmation.")]

SparkConf = Annotated[list[str] | None, option("--conf NAME=VALUE", "Set a Spark property; repeatable.")]
Directory = Annotated[str, argument("DIR")]
TopicNames = Annotated[list[str] | None, option("--topic TOPIC", "Include this topic only; repeatable.")]
BrokerWait = Annotated[str, option("--broker-wait DURATION", "Wait this long for a broker that cannot be reached.")]
AllowFewerRacks = Annotated[
    bool, option("--allow-fewer-racks", "Allow partitions to be spread over fewer racks than before.")
]


# Groups of options.

# The options that say how to connect. Spark's executors need a file.
_SECURITY = {"command_config": CommandConfig, "tls_ca": TlsCa, "login": Login}
_SECURITY_OF_PIPELINE = {"command_config": CommandConfig, "kafka": KafkaProperties}
_PIPELINE = ("kbroker.cli.archive", "kbroker.cli.replay", "kbroker.cli.pipeline")


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command in which each parameter that is a NamedTuple of options has one option for each field.

    One that connects to brokers has the options for secured listeners, too.
    """
    signature = inspect.signature(command)
    parameters = list(signature.parameters.values())
    connects = "bootstrap" in signature.parameters or command.__module__.startswith("kbroker.cli.doctor")
    # A test may expand a command again.
    security: dict[str, Any] = {}
    if connects and "command_config" not in signature.parameters:
        security = _SECURITY_OF_PIPELINE if command.__module__.startswith(_PIPELINE) else _SECURITY
    for name, annotation in security.items():
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, kind, default=None, annotation=annotation))
    has_spark = any(each.annotation is SparkOptions for each in parameters)
    groups = {each.name: each.annotation for each in parameters if hasattr(each.annotation, "_fields")}

    @wraps(command)
    def expanded(**arguments: Any) -> None:
        for name, group in groups.items():
            arguments[name] = group(**{field: arguments.pop(field) for field in group._fields})
        if security:
            from kbroker.cli.common.client_security import use_security_options

            use_security_options(**{name: arguments.pop(name) for name in security}, has_spark=has_spark)
        command(**arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    options: list[inspect.Parameter] = []
    for parameter in parameters:
        group = groups.get(parameter.name)
        if group is None:
            options.append(parameter.replace(kind=keyword))
        else:
            options += [
                inspect.Parameter(
                    field, keyword, default=group._field_defaults.get(field, inspect.Parameter.empty), annotation=option
                )
                for field, option in group.__annotations__.items()
            ]
    expanded.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in options}
    return expanded


class PlanOptions(NamedTuple):
    """How to show a plan of moves and let the controller run it."""

    dry_run: Annotated[bool, option("--dry-run", "Show the plan, and do not run it.")] = False
    throttle: Annotated[
        str | None,
        option(
            "--throttle RATE",
            "Maximum bytes per second that each broker sends and receives for the plan, such as 20MiB.",
            show_default="no throttle",
        ),
    ] = None
    concurrent: Annotated[
        int | None,
        option("--concurrent N", "Partitions that move at the same time.", min=1, max=INT32, show_default="10"),
    ] = None
    detach: Annotated[bool, option("--detach", "Return as soon as the plan has begun.")] = False
    yes: Yes = False
    as_json: AsJson = False

    @property
    def throttle_bytes_per_second(self) -> int | None:
        """None for no throttle. Raises CliError for a rate that cannot be parsed."""
        return None if self.throttle is None else parse_rate(self.throttle)

    @property
    def max_concurrent_moves(self) -> int:
        return self.concurrent or 10

    @property
    def used(self) -> list[str]:
        """The names of the options that the command line has."""
        used = [name for name, default in self._field_defaults.items() if getattr(self, name) != default]
        return ["--" + name.removeprefix("as_").replace("_", "-") for name in used]


class SparkOptions(NamedTuple):
    """How to run Spark."""

    master: Annotated[
        str | None, option("--master URL", "Spark master, as for spark-submit.", show_default="local[*]")
    ] = None
    jars: Annotated[
        str | None,
        option(
            "--spark-jars DIR",
            "Directory with Spark's Kafka connector, made by `kbroker pipeline fetch`.",
            envvar="KBROKER_SPARK_JARS",
            show_default="downloaded once",
        ),
    ] = None
    conf: SparkConf = None


@contextmanager
def spark_session_for(name: str, options: SparkOptions, *, prints: bool = False) -> "Iterator[SparkSession]":
    """Open a Spark session for one command. Errors of Spark and of the pipeline are raised as CliError."""
    from kbroker.pipeline.spark.session import spark_session
    from kbroker.pipeline.spark.session_conf import parse_conf

    with pipeline_errors():
        with pipeline_usage_errors():
            settings = parse_conf(options.conf or [])
        with spark_session(
            name, master=options.master, jars=options.jars, conf=settings, note=print_note, prints=prints
        ) as session:
            yield session


@contextmanager
def pipeline_usage_errors() -> Iterator[None]:
    """Raise errors of the pipeline as CliError for wrong usage."""
    from kbroker.archive.errors import ArchiveError

    try:
        yield
    except ArchiveError as error:
        raise usage_error(str(error)) from None


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Raise errors of the pipeline, Spark and py4j as CliError."""
    from kbroker.archive.errors import ArchiveError
    from kbroker.pipeline.spark.error_text import error_text, is_spark_error

    try:
        yield
    except ArchiveError as error:
        raise CliError(str(error)) from error
    except Exception as error:
        if not is_spark_error(error):
            raise
        raise CliError(error_text(error)) from error
