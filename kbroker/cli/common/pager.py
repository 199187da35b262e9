"""A pager for long output in a terminal, like git's: $PAGER, and the option --no-pager."""

import inspect
import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any

import typer

NoPager = Annotated[bool, typer.Option("--no-pager", help="Do not page long output in a terminal.")]

DEFAULT_PAGER = "less"
LESS = "FRX"  # exit if the text fits on one screen, pass colors through, leave the text on the screen


def paginated(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that its output is paged, and add the option --no-pager to it."""

    @wraps(command)
    def paginated_command(*args: Any, no_pager: bool = False, **options: Any) -> None:
        with pager(enabled=not no_pager):
            command(*args, **options)

    signature = inspect.signature(command)
    option = inspect.Parameter("no_pager", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=NoPager)
    paginated_command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    paginated_command.__annotations__ = {**command.__annotations__, "no_pager": NoPager}
    return paginated_command


class _TerminalBuffer(io.StringIO):
    """Buffered output that claims to be a terminal, so that tables and colors are printed."""

    def isatty(self) -> bool:
        return True


@contextmanager
def pager(*, enabled: bool = True) -> Iterator[None]:
    """Send the output of the block to a pager if it is longer than the terminal. No effect without a terminal."""
    command = shlex.split(os.environ.get("PAGER", DEFAULT_PAGER)) if enabled and sys.stdout.isatty() else []
    if not command or command == ["cat"] or shutil.which(command[0]) is None:
        yield
        return
    terminal = sys.stdout
    sys.stdout = buffer = _TerminalBuffer()
    try:
        yield
    finally:
        sys.stdout = terminal
        text = buffer.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines:
            terminal.write(text)
        else:
            # check=False: leaving the pager with q or Ctrl-C is not a failure of the command.
            subprocess.run(command, input=text.encode(errors="replace"), env={"LESS": LESS, **os.environ}, check=False)
