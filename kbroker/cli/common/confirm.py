"""Confirmation before something is deleted or aborted."""

import sys

import typer


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation when run in a terminal; raises typer.Abort when it is refused. Scripts are not asked."""
    if not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)
