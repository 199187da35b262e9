"""Long output in a terminal goes through a pager, as with git: PAGER, and --no-pager against it."""

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
LESS = "FRX"  # end at once where it fits, keep colours, leave the text on the screen


def pages(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose output is paged; it gets the option --no-pager."""

    @wraps(command)
    def paged_command(*args: Any, no_pager: bool = False, **options: Any) -> None:
        with paged(wanted=not no_pager):
            command(*args, **options)

    signature = inspect.signature(command)
    option = inspect.Parameter("no_pager", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=NoPager)
    paged_command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    paged_command.__annotations__ = {**command.__annotations__, "no_pager": NoPager}
    return paged_command


class _Held(io.StringIO):
    """Output that waits for its end. It passes for the terminal, so that it is made for eyes."""

    def isatty(self) -> bool:
        return True


@contextmanager
def paged(*, wanted: bool = True) -> Iterator[None]:
    """What is printed inside goes to a pager when it is more than the terminal holds; in a pipe nothing changes."""
    pager = shlex.split(os.environ.get("PAGER", DEFAULT_PAGER)) if wanted and sys.stdout.isatty() else []
    if not pager or pager == ["cat"] or shutil.which(pager[0]) is None:
        yield
        return
    terminal = sys.stdout
    sys.stdout = held = _Held()
    try:
        yield
    finally:
        sys.stdout = terminal
        text = held.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines:
            terminal.write(text)
        else:
            _page(pager, text)


def _page(pager: list[str], text: str) -> None:
    # the pager's own way of ending (q, Ctrl-C) is no failure of ours
    subprocess.run(pager, input=text.encode(errors="replace"), env={"LESS": LESS, **os.environ}, check=False)
