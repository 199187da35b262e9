"""`kbroker log`: looking at the files of a data directory. Nothing here writes or asks a broker."""

import typer

from kbroker.cli import log_dump, log_verify

app = typer.Typer(help="Look at the files of a data directory, and check them.", no_args_is_help=True)
app.command("dump")(log_dump.dump)
app.command("verify")(log_verify.verify)
