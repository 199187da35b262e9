"""Failures as one line on standard error."""

import os
import sys
from contextlib import suppress


class CliError(Exception):
    """A failure to be told in one line. `status` is the exit status: 1 failed, 2 wrong usage."""

    def __init__(self, message: str, *, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def usage(message: str) -> CliError:
    """The arguments do not make sense together, or one of them cannot be read."""
    return CliError(message, status=2)


def complain(message: str) -> None:
    """One line on standard error, in red where somebody looks at it."""
    text = "kbroker: " + " ".join(message.split())
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = f"\x1b[31m{text}\x1b[0m"
    with suppress(OSError):  # nobody may be left to read it
        print(text, file=sys.stderr, flush=True)


def explain(error: BaseException) -> str:
    """What an exception says to somebody who did not write the program."""
    if isinstance(error, CliError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    detail = str(error)
    if detail and type(error).__module__.startswith("kbroker."):
        # Ours are sentences.
        return detail
    name = type(error).__name__
    return detail if name in detail else f"{name}: {detail}" if detail else name
