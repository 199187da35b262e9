"""Options that several commands have."""

from typing import Annotated

import typer

from kbroker.cli.common.parsing import INT32

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

# Of commands that make a plan of moves and let the controller run it: see plan_options.py.
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and do not run it.")]
Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="RATE",
        help="Maximum bytes per second that each broker sends and receives for the plan, such as 20MiB.",
        show_default="no throttle",
    ),
]
Concurrent = Annotated[
    int | None,
    typer.Option(
        "--concurrent",
        metavar="N",
        min=1,
        max=INT32,
        help="Partitions that move at the same time.",
        show_default="10",
    ),
]
AllowFewerRacks = Annotated[
    bool, typer.Option("--allow-fewer-racks", help="Allow partitions to be spread over fewer racks than before.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as the plan has begun.")]
