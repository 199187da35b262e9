"""Options that several commands have."""

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="KBROKER_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="One or more brokers of the cluster.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
