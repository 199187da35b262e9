"""The `kbroker` command.

A broker must listen within a blink, so `kbroker start` with plain options goes past typer, rich and the
client library: together they would cost more than the start itself. Everything else, `kbroker start --help`
included, is in app.py.
"""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; gives the exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] == ["start"]:
        from kbroker.cli.start.start import parse_plain, start

        options = parse_plain(args[1:])
        if options is not None:
            return start(options)
    from kbroker.cli.app import run

    return run(args)
