"""The `kbroker` command.

`kbroker start` with valid options bypasses typer: loading it would take longer than the rest of the start. Every
other command line, `kbroker start --help` included, runs in app.py.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] == ["start"]:
        from kbroker.cli.start.options import parse_options

        options = parse_options(args[1:])
        if options is not None:
            from kbroker.cli.start.start import start

            return start(options)
    from kbroker.cli.app import run

    return run(args)
