"""Failures of commands, reported as one line on standard error."""

import os
import sys
from contextlib import suppress


class CliError(Exception):
    """A failure with a one-line message. `status` is the exit status: 1 failed, 2 wrong usage."""

    def __init__(self, message: str, *, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def usage_error(message: str) -> CliError:
    """Return the error for an argument that cannot be parsed, or for arguments that exclude each other."""
    return CliError(message, status=2)


def print_error(message: str) -> None:
    """Print one line on standard error, in red on a terminal."""
    text = "kbroker: " + " ".join(message.split())
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        text = f"\x1b[31m{text}\x1b[0m"
    with suppress(OSError):  # standard error may be a closed pipe
        print(text, file=sys.stderr, flush=True)


def exception_text(error: BaseException) -> str:
    """Return the message of an exception, with the class name only if the message alone is meaningless."""
    if isinstance(error, CliError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    detail = str(error)
    if detail and type(error).__module__.startswith("kbroker."):
        # The messages of kbroker's exceptions are sentences.
        return detail
    name = type(error).__name__
    return detail if name in detail else f"{name}: {detail}" if detail else name
