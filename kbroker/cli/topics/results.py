"""The results of requests about several topics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from kbroker.cli.common.client import topic_error_text
from kbroker.cli.common.errors import print_error
from protocol.errors import ErrorCode


def print_results(
    results: Sequence[Mapping[str, Any]],
    success_text: Callable[[Mapping[str, Any]], str],
    ignored: set[ErrorCode] | None = None,
) -> None:
    """Print one line per topic; exits with status 1 if one of them failed."""
    failed = False
    for result in results:
        code = result["error_code"]
        if not code:
            print(f"{result['name']}: {success_text(result)}")
        elif code not in (ignored or ()):
            print_error(topic_error_text(result["name"], code, result["error_message"]))
            failed = True
    if failed:
        raise typer.Exit(1)
