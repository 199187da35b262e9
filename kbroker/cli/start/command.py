"""`kbroker start` as a typer command, for its help and for wrong usage; see kbroker/cli/__init__.py."""

from typing import Annotated

import typer

from kbroker.cli.start.options import DEFAULT_DATA_DIR, DEFAULT_LISTEN, StartOptions

# These options describe a broker, for `kbroker config show` and `kbroker doctor` as well.
ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help="Read properties from TOML or Kafka's server.properties.")
]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="Store data here.", show_default=f"./{DEFAULT_DATA_DIR}"),
]
Listen = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Accept clients on this address.", show_default=DEFAULT_LISTEN),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise", metavar="HOST:PORT", help="Address that clients connect to.", show_default="as --listen"
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a property, overriding the file; repeatable."),
]


def start(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    properties: Properties = None,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Format of log lines: text or json.", show_default="text")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics on this address.", show_default="off"),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Run a cluster of N brokers on consecutive ports.", show_default="a single broker"
        ),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Prints one line with the bootstrap address on standard output when it is ready, and logs to standard error.

    With --brokers, each broker is a process of its own, and this process serves the coordination service to them.

    Example: kbroker start --data-dir /var/lib/kbroker --listen 0.0.0.0:9092 --advertise broker.example:9092
    """
    from kbroker.cli.start.start import start as start_broker

    options = StartOptions(
        config, data_dir, listen, advertise, properties or [], log_level, log_format, metrics, brokers
    )
    raise typer.Exit(start_broker(options))
