"""The command tree, and the one place where failures become exit statuses."""

import os
import sys
from typing import Annotated

import typer

from kbroker.cli.archive import app as archive
from kbroker.cli.common.completion import rejoin_words
from kbroker.cli.common.errors import CliError, complain, explain, usage
from kbroker.cli.configs import configs
from kbroker.cli.configs import show as config
from kbroker.cli.doctor import doctor
from kbroker.cli.groups import groups
from kbroker.cli.log import app as log_app
from kbroker.cli.pipeline import app as pipeline
from kbroker.cli.records import consume, produce
from kbroker.cli.replay import replay
from kbroker.cli.start import start
from kbroker.cli.topics import topics
from kbroker.cli.transactions import transactions

INTERRUPTED = 130

app = typer.Typer(
    name="kbroker",
    help="A message queue that speaks the Kafka wire protocol: the broker, and tools for any Kafka broker.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"kbroker {version('kbroker')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command("start")
def start_broker(
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML, or server.properties as Kafka has it.")
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where data is kept.", show_default=f"./{start.DEFAULT_DATA_DIR}"),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Accept clients here.", show_default=start.DEFAULT_LISTEN),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Tell clients to connect here.", show_default="as --listen"),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set one property; stronger than the file."),
    ] = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="One of debug, info, warning, error.")] = "info",
    log_format: Annotated[
        str | None,
        typer.Option(metavar="FORM", help="Lines of the log: text or json.", show_default="text"),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics for Prometheus here.", show_default="nowhere"),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    One line on standard output names the bootstrap address when it is ready; the log goes to standard error.
    """
    options = start.StartOptions(config, data_dir, listen, advertise, properties or [], log_level, log_format, metrics)
    raise typer.Exit(start.start(options))


app.add_typer(config.app, name="config")
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(groups.app, name="groups")
app.add_typer(transactions.app, name="transactions")
app.add_typer(configs.app, name="configs")
app.add_typer(log_app.app, name="log")
app.add_typer(archive.app, name="archive")
app.command("replay")(replay.replay)
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor")(doctor.doctor)


def _misused(error: typer.TyperException) -> int:
    # typer raises its help as an error where a command is missing, and it too knows that one by its name
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
    else:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "kbroker"
        complain(f"{error.format_message()} ({path} --help shows how it is used)")
    return error.exit_code


def _require_text(args: list[str]) -> None:
    """Names and configs are text. Only records may hold any bytes."""
    for arg in args if args[:1] != ["produce"] else args[1:2]:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise usage(f"not UTF-8: {arg!r}") from None


def run(args: list[str]) -> int:
    """Run one command line; gives the exit status."""
    rejoin_words(os.environ)
    try:
        _require_text(args)
        status = app(args, prog_name="kbroker", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except CliError as error:
        complain(str(error))
        return error.status
    except typer.TyperException as error:
        return _misused(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as error:
        # typer and rich end the process so when the reader of a pipe has gone
        return error.code if isinstance(error.code, int) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        complain(explain(error))
        return 1
