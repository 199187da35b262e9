"""`kbroker start` as a typer command, for its help and for wrong usage; see kbroker/cli/__init__.py."""

from typing import Annotated

import typer

from kbroker.cli.common.options import option
from kbroker.cli.start.options import DEFAULT_DATA_DIR, DEFAULT_LISTEN, StartOptions

# These options describe a broker, for `kbroker config show` and `kbroker doctor` as well.
ConfigFile = Annotated[str | None, option("--config FILE", "Read properties from TOML or Kafka's server.properties.")]
DataDir = Annotated[str | None, option("--data-dir DIR", "Store data here.", show_default=f"./{DEFAULT_DATA_DIR}")]
Listen = Annotated[
    list[str] | None,
    option(
        "--listen [NAME://]HOST:PORT",
        "Accept clients on this address; repeatable, each with a name but one.",
        show_default=DEFAULT_LISTEN,
    ),
]
Advertise = Annotated[
    list[str] | None,
    option(
        "--advertise [NAME://]HOST:PORT",
        "Address that the clients of this listener connect to; repeatable.",
        show_default="as --listen",
    ),
]
Secure = Annotated[
    bool,
    option(
        "--secure",
        "Clients need TLS and a login. Creates certificates, an administrator and files for clients in the directory "
        "`secure` of the data directory, unless they exist.",
    ),
]
Properties = Annotated[list[str] | None, option("--set NAME=VALUE", "Set a property, overriding the file; repeatable.")]


def start(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    properties: Properties = None,
    log_level: Annotated[str, option("LEVEL", "debug, info, warning or error.")] = "info",
    log_format: Annotated[
        str | None, option("FORMAT", "Format of log lines: text or json.", show_default="text")
    ] = None,
    metrics: Annotated[
        str | None, option("HOST:PORT", "Serve Prometheus metrics on this address.", show_default="off")
    ] = None,
    brokers: Annotated[
        int | None,
        option("N", "Run a cluster of N brokers on consecutive ports.", min=1, show_default="a single broker"),
    ] = None,
    add_scram: Annotated[
        list[str] | None,
        option(
            "--add-scram USER",
            "Create a SCRAM user unless it exists: SCRAM-SHA-256=[name=NAME,password=PASSWORD], or @FILE with one in "
            "each line; repeatable.",
        ),
    ] = None,
    secure: Secure = False,
    console: Annotated[
        str | None,
        option("HOST:PORT", "Serve pages that show the cluster in a browser on this address.", show_default="off"),
    ] = None,
    dev: Annotated[
        bool,
        option(
            "--dev",
            "A broker for tests: settings that make them quick, a clock that moves, data in memory unless --data-dir "
            "is given. Nothing is synced to the disk.",
        ),
    ] = False,
    control: Annotated[
        str | None,
        option("--control HOST:PORT", "With --dev, let tests control the broker over HTTP.", show_default="off"),
    ] = None,
    control_insecure_host: Annotated[
        list[str] | None,
        option(
            "--control-insecure-host NAME",
            "Let tests reach --control by this name of a container, and on any address: whoever reaches it controls "
            "the broker, without a login; repeatable.",
        ),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Prints one line with the bootstrap address on standard output when it is ready, and logs to standard error.

    With --dev --control 127.0.0.1:0, the line has the address of the control as well, whose first page lists its calls.

    With --brokers, each broker is a process of its own, and this process serves the coordination service to them.

    Example: kbroker start --data-dir /var/lib/kbroker --listen 0.0.0.0:9092 --advertise broker.example:9092
    """
    from kbroker.cli.start.start import start as start_broker

    options = StartOptions(
        config, data_dir, listen or [], advertise or [], properties or [], log_level, log_format, metrics, brokers,
        add_scram or [], secure, console, dev, control, control_insecure_host or [],
    )  # fmt: skip
    raise typer.Exit(start_broker(options))
