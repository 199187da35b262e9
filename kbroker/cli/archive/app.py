"""The command group `kbroker archive`."""

import typer

from kbroker.cli.archive.compact import compact
from kbroker.cli.archive.describe import describe, list_archives
from kbroker.cli.archive.run import run
from kbroker.cli.archive.verify import verify

app = typer.Typer()

app.command("run")(run)
app.command("list")(list_archives)
app.command("describe")(describe)
app.command("compact")(compact)
app.command("verify")(verify)
