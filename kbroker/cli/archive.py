"""`kbroker archive`: topics as Parquet files. Each command is in a file of its own; here they come together."""

import typer

from kbroker.cli.archive_compact import compact
from kbroker.cli.archive_list import describe, list_archives
from kbroker.cli.archive_run import run
from kbroker.cli.archive_verify import verify

app = typer.Typer(help="Keep topics as Parquet files, look at them, check them.", no_args_is_help=True)

app.command("run")(run)
app.command("list")(list_archives)
app.command("describe")(describe)
app.command("compact")(compact)
app.command("verify")(verify)
