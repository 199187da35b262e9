"""Failures of commands, reported as one line on standard error: a text, or with --json a JSON document."""

import json
import os
import re
import sys
from contextlib import suppress

# What error_code_text (client.py) ends with.
_CODE = re.compile(r"\(([A-Z][A-Z0-9_]+)\)$")

_prints_json = False


class CliError(Exception):
    """A failure with a one-line message. `status` is the exit status: 1 failed, 2 wrong usage.

    `code`: the name of Kafka's error code, by default the one with which the message ends. `hint`: what to do.
    """

    def __init__(self, message: str, *, status: int = 1, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.status = status
        found = _CODE.search(message)
        self.fields = {"message": message, "code": code or (found[1] if found else None), "hint": hint}


def usage_error(message: str, hint: str | None = None) -> CliError:
    """Return the error for an argument that cannot be parsed, or for arguments that exclude each other."""
    return CliError(message, status=2, hint=hint)


def use_json_errors(enabled: bool) -> None:
    """Set whether `print_error` prints JSON from now on."""
    global _prints_json
    _prints_json = enabled


def print_error(failure: CliError | str) -> None:
    """Print one line on standard error, in red on a terminal."""
    error = CliError(failure) if isinstance(failure, str) else failure
    if _prints_json:
        fields = {name: " ".join(value.split()) for name, value in error.fields.items() if value is not None}
        text = json.dumps({"error": fields}, ensure_ascii=False)
    else:
        text = "kbroker: " + " ".join(str(error).split())
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
