"""The `kbroker` command.

`kbroker --help` and `kbroker start` with valid options bypass typer: loading it would take longer than the rest. Every
other command line, `kbroker start --help` included, runs in app.py.
"""

import gc
import os
import sys
from collections.abc import Sequence

GC_THRESHOLD = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    if argv is not None:
        return _run(list(argv))
    # Commands make many tuples and few cycles: with Python's threshold, collections take a sixth of `consume`.
    gc.set_threshold(GC_THRESHOLD)
    status = _run(sys.argv[1:])
    # At its end, Python looks for cycles in all that was imported, which takes a quarter of `topics list`.
    gc.freeze()
    return status


def _run(args: list[str]) -> int:
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    if args[:1] == ["start"]:
        from kbroker.cli.start.options import parse_options

        options = parse_options(args[1:])
        if options is not None:
            from kbroker.cli.start.start import start

            return start(options)
    if args in (["--help"], ["-h"]):
        from kbroker.cli.commands import root_help

        return _print(root_help())
    from kbroker.cli.app import run

    return run(args)


def _print(text: str) -> int:
    try:
        print(text, flush=True)
        return 0
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"kbroker: {error.strerror}", file=sys.stderr)
        # Python flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
